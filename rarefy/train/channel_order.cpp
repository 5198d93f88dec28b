// Dealing and swapping of channels.
#include "rarefy/train/channel_order.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "rarefy/base/check.h"

namespace rarefy::train {
namespace {

/// Squares of the samples, one contiguous column per channel.
std::vector<float> columns(std::span<const float> samples, std::size_t dim) {
  const std::size_t rows = samples.size() / dim;
  std::vector<float> out(samples.size());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < dim; ++c) out[c * rows + r] = samples[r * dim + c] * samples[r * dim + c];
  return out;
}

/// Sum over the rows of the two smallest of four columns.
double group_loss(const float* a, const float* b, const float* c, const float* d, std::size_t rows) {
  double loss = 0;
  for (std::size_t begin = 0; begin < rows; begin += 64) {
    float part = 0;
    for (std::size_t r = begin; r < std::min(rows, begin + 64); ++r) {
      // All four minus the two largest; the second largest is the middle of what a tournament leaves.
      const float high1 = std::max(a[r], b[r]), low1 = std::min(a[r], b[r]), high2 = std::max(c[r], d[r]),
                  low2 = std::min(c[r], d[r]);
      part += std::min(low1, low2) + std::min(std::max(low1, low2), std::min(high1, high2));
    }
    loss += part;
  }
  return loss;
}

}  // namespace

std::vector<std::int32_t> deal_channels(std::span<const double> energy) {
  const std::size_t dim = energy.size(), groups = dim / 4;
  CHECK(dim % 4 == 0 && dim > 0, "a head of {} channels", dim);
  std::vector<std::int32_t> rank(dim), order(dim);
  std::iota(rank.begin(), rank.end(), 0);
  std::stable_sort(rank.begin(), rank.end(), [&](std::int32_t a, std::int32_t b) {
    return energy[static_cast<std::size_t>(a)] > energy[static_cast<std::size_t>(b)];
  });
  for (std::size_t round = 0; round < 4; ++round)
    for (std::size_t i = 0; i < groups; ++i) {
      const std::size_t group = round % 2 == 0 ? i : groups - 1 - i;
      order[group * 4 + round] = rank[round * groups + i];
    }
  return order;
}

void improve_order(std::vector<std::int32_t>& order, std::span<const float> samples, int swaps, std::uint64_t seed) {
  const std::size_t dim = order.size(), rows = samples.size() / dim;
  const std::vector<float> column = columns(samples, dim);
  const auto loss_of = [&](std::size_t group) {
    const float* at[4];
    for (std::size_t i = 0; i < 4; ++i) at[i] = column.data() + static_cast<std::size_t>(order[group * 4 + i]) * rows;
    return group_loss(at[0], at[1], at[2], at[3], rows);
  };
  std::vector<double> loss(dim / 4);
  for (std::size_t group = 0; group < loss.size(); ++group) loss[group] = loss_of(group);
  std::mt19937_64 random(seed);
  for (int i = 0; i < swaps; ++i) {
    const std::size_t a = random() % dim, b = random() % dim;
    if (a / 4 == b / 4) continue;
    std::swap(order[a], order[b]);
    const double first = loss_of(a / 4), second = loss_of(b / 4);
    if (first + second < loss[a / 4] + loss[b / 4]) {
      loss[a / 4] = first;
      loss[b / 4] = second;
    } else {
      std::swap(order[a], order[b]);
    }
  }
}

double dropped_energy(std::span<const std::int32_t> order, std::span<const float> samples) {
  const std::size_t dim = order.size(), rows = samples.size() / dim;
  const std::vector<float> column = columns(samples, dim);
  double loss = 0;
  for (std::size_t g = 0; g < dim; g += 4) {
    const auto at = [&](std::size_t i) { return column.data() + static_cast<std::size_t>(order[g + i]) * rows; };
    loss += group_loss(at(0), at(1), at(2), at(3), rows);
  }
  return loss;
}

}  // namespace rarefy::train
