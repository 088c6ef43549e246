module @while attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<2x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
%0 = stablehlo.constant dense<0.000000000e0> : tensor<f32>
%1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
%2 = stablehlo.constant dense<1.000000000e0> : tensor<f32>
%5:2 = stablehlo.while(%3 = %2, %4 = %arg0) : tensor<f32>, tensor<4x8xf32> cond {
%6 = stablehlo.compare LT, %3, %1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
stablehlo.return %6 : tensor<i1>
} do {
%7 = stablehlo.constant dense<2.000000000e0> : tensor<f32>
%8 = stablehlo.multiply %3, %7 : tensor<f32>
%9 = stablehlo.add %4, %arg0 : tensor<4x8xf32>
stablehlo.return %8, %9 : tensor<f32>, tensor<4x8xf32>
}
return %5#1 : tensor<4x8xf32>
}
}
