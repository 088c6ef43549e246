module @product attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32}, %arg1: tensor<2x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
%0 = stablehlo.slice %arg1 [0:1, 0:8, 0:8] : (tensor<2x8x8xf32>) -> tensor<1x8x8xf32>
%1 = stablehlo.reshape %0 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
%2 = stablehlo.convert %arg0 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
%3 = stablehlo.convert %1 : (tensor<8x8xf32>) -> tensor<8x8xbf16>
%4 = stablehlo.dot_general %2, %3, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
%5 = stablehlo.convert %4 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
%6 = stablehlo.convert %5 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
%7 = stablehlo.constant dense<1.000000000e0> : tensor<f32>
%8 = stablehlo.broadcast_in_dim %7, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
%9 = stablehlo.multiply %8, %6 : tensor<4x8xf32>
%10 = stablehlo.multiply %8, %6 : tensor<4x8xf32>
%11 = stablehlo.add %9, %10 : tensor<4x8xf32>
%12 = stablehlo.convert %11 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
%13 = stablehlo.dot_general %12, %3, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
%14 = stablehlo.convert %13 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
%15 = stablehlo.convert %14 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
return %15 : tensor<4x8xf32>
}
}
