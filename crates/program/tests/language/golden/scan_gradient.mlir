module @scan_gradient attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg1: tensor<2x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>, tf.aliasing_output = 2 : i32}) -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}, tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, tensor<2x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}, {}]>}) {
%0 = stablehlo.constant dense<0> : tensor<i32>
%1 = stablehlo.constant dense<0.000000000e0> : tensor<2x4x8xf32>
%2 = stablehlo.constant dense<0.000000000e0> : tensor<2x4x8xf32>
%7:4 = stablehlo.while(%3 = %0, %4 = %arg0, %5 = %1, %6 = %2) : tensor<i32>, tensor<4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32> cond {
%8 = stablehlo.constant dense<2> : tensor<i32>
%9 = stablehlo.compare LT, %3, %8, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
stablehlo.return %9 : tensor<i1>
} do {
%10 = stablehlo.constant dense<0> : tensor<i32>
%11 = stablehlo.dynamic_slice %arg1, %3, %10, %10, sizes = [1, 8, 8] : (tensor<2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
%12 = stablehlo.reshape %11 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
%13 = stablehlo.dot_general %4, %12, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc("layer")
%14 = stablehlo.tanh %13 : tensor<4x8xf32>
%15 = sdy.sharding_constraint %14 <@mesh, [{"x"}, {}]> : tensor<4x8xf32>
%16 = stablehlo.constant dense<1> : tensor<i32>
%17 = stablehlo.add %3, %16 : tensor<i32>
%18 = stablehlo.reshape %4 : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
%19 = stablehlo.constant dense<0> : tensor<i32>
%20 = stablehlo.dynamic_update_slice %5, %18, %3, %19, %19 : (tensor<2x4x8xf32>, tensor<1x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x4x8xf32>
%21 = stablehlo.reshape %13 : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
%22 = stablehlo.constant dense<0> : tensor<i32>
%23 = stablehlo.dynamic_update_slice %6, %21, %3, %22, %22 : (tensor<2x4x8xf32>, tensor<1x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x4x8xf32>
stablehlo.return %17, %15, %20, %23 : tensor<i32>, tensor<4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>
}
%24 = stablehlo.multiply %7#1, %7#1 : tensor<4x8xf32>
%25 = stablehlo.constant dense<0.000000000e0> : tensor<f32>
%26 = stablehlo.reduce(%24 init: %25) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
%27 = stablehlo.constant dense<1.000000000e0> : tensor<f32>
%28 = stablehlo.broadcast_in_dim %27, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
%29 = stablehlo.multiply %28, %7#1 : tensor<4x8xf32>
%30 = stablehlo.multiply %28, %7#1 : tensor<4x8xf32>
%31 = stablehlo.add %29, %30 : tensor<4x8xf32>
%32 = stablehlo.constant dense<0> : tensor<i32>
%33 = stablehlo.constant dense<0.000000000e0> : tensor<2x8x8xf32>
%37:3 = stablehlo.while(%34 = %32, %35 = %31, %36 = %33) : tensor<i32>, tensor<4x8xf32>, tensor<2x8x8xf32> cond {
%38 = stablehlo.constant dense<2> : tensor<i32>
%39 = stablehlo.compare LT, %34, %38, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
stablehlo.return %39 : tensor<i1>
} do {
%40 = stablehlo.constant dense<1> : tensor<i32>
%41 = stablehlo.subtract %40, %34 : tensor<i32>
%42 = stablehlo.constant dense<0> : tensor<i32>
%43 = stablehlo.dynamic_slice %7#2, %41, %42, %42, sizes = [1, 4, 8] : (tensor<2x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
%44 = stablehlo.reshape %43 : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
%45 = stablehlo.constant dense<0> : tensor<i32>
%46 = stablehlo.dynamic_slice %7#3, %41, %45, %45, sizes = [1, 4, 8] : (tensor<2x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
%47 = stablehlo.reshape %46 : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
%48 = stablehlo.constant dense<0> : tensor<i32>
%49 = stablehlo.dynamic_slice %arg1, %41, %48, %48, sizes = [1, 8, 8] : (tensor<2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
%50 = stablehlo.reshape %49 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
%51 = stablehlo.tanh %47 : tensor<4x8xf32>
%52 = sdy.sharding_constraint %35 <@mesh, [{"x"}, {}]> : tensor<4x8xf32>
%53 = stablehlo.multiply %51, %51 : tensor<4x8xf32>
%54 = stablehlo.multiply %52, %53 : tensor<4x8xf32>
%55 = stablehlo.subtract %52, %54 : tensor<4x8xf32>
%56 = stablehlo.dot_general %55, %50, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc("layer")
%57 = stablehlo.dot_general %44, %55, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32> loc("layer")
%58 = stablehlo.constant dense<1> : tensor<i32>
%59 = stablehlo.add %34, %58 : tensor<i32>
%60 = stablehlo.reshape %57 : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
%61 = stablehlo.constant dense<0> : tensor<i32>
%62 = stablehlo.dynamic_update_slice %36, %60, %41, %61, %61 : (tensor<2x8x8xf32>, tensor<1x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x8x8xf32>
stablehlo.return %59, %56, %62 : tensor<i32>, tensor<4x8xf32>, tensor<2x8x8xf32>
}
return %26, %37#1, %37#2 : tensor<f32>, tensor<4x8xf32>, tensor<2x8x8xf32>
}
}
