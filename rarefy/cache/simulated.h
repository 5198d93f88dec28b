// What a quantised cache would make of a row: for comparison only, no bytes are saved.
#pragma once
#include <cstdint>

namespace rarefy {

/// Caches that can be simulated, by the names of GGUF's types: 34 and 20 bytes for 32 values.
enum class SimulatedCache : std::uint8_t { None, Q8_0, Q4_1 };

/// Rounds `count` values (a multiple of 32) in groups of 32 as the type's blocks would hold them, scales in fp16.
void round_as(SimulatedCache type, float* values, int count);

}  // namespace rarefy
