module @scan attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<2x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
%0 = stablehlo.constant dense<0> : tensor<i32>
%3:2 = stablehlo.while(%1 = %0, %2 = %arg0) : tensor<i32>, tensor<4x8xf32> cond {
%4 = stablehlo.constant dense<2> : tensor<i32>
%5 = stablehlo.compare LT, %1, %4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
stablehlo.return %5 : tensor<i1>
} do {
%6 = stablehlo.constant dense<0> : tensor<i32>
%7 = stablehlo.dynamic_slice %arg1, %1, %6, %6, sizes = [1, 8, 8] : (tensor<2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
%8 = stablehlo.reshape %7 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
%9 = stablehlo.dot_general %2, %8, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc("layer")
%10 = stablehlo.tanh %9 : tensor<4x8xf32>
%11 = sdy.sharding_constraint %10 <@mesh, [{"x"}, {}]> : tensor<4x8xf32>
%12 = stablehlo.constant dense<1> : tensor<i32>
%13 = stablehlo.add %1, %12 : tensor<i32>
stablehlo.return %13, %11 : tensor<i32>, tensor<4x8xf32>
}
return %3#1 : tensor<4x8xf32>
}
}
