// How exactly products are computed.
#pragma once

namespace rarefy {

/// Fp32: float32 operands throughout, the reference. Fast: 16-bit or 8-bit operands where the machine multiplies them
/// faster (bf16 products in prefill, 8-bit activations against quantised weights in decode), float32 sums.
enum class Precision { Fp32, Fast };

}  // namespace rarefy
