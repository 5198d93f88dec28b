// The channel order of one KV head: strong channels dealt over the groups of four, then improved by swaps (pruning.md
// 1).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace rarefy::train {

/// Deals channels by energy over the head_dim / 4 groups, back and forth, so that every group holds one of each quarter
/// of the ranking. order[i] is the channel at place i. Ties keep the lower channel first.
std::vector<std::int32_t> deal_channels(std::span<const double> energy);

/// Swaps channels of different groups while that lowers the energy which two-of-four drops on the samples.
///   samples  [rows, head_dim] weighted keys k_c u_c;   swaps  tried, from `seed`
void improve_order(std::vector<std::int32_t>& order, std::span<const float> samples, int swaps, std::uint64_t seed);

/// Sum over rows and groups of the two smallest squares of each group: what two-of-four drops.
double dropped_energy(std::span<const std::int32_t> order, std::span<const float> samples);

}  // namespace rarefy::train
