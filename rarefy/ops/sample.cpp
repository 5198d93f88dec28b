// Choice of the next token: greedy, or drawn from the tokens that top-k, top-p and min-p leave.
#include "rarefy/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "rarefy/base/check.h"

namespace rarefy::ops {
namespace {

struct Candidate {
  float logit;
  std::int32_t id;
};

// Order of a heap whose top is the best candidate: higher logit first, lower id first among equals.
bool worse(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit < b.logit : a.id > b.id; }

// The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection that mixes every bit into every bit.
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Draw number `step` of `seed`, uniform in [0, 1) with 53 bits: splitmix64 whose state starts at mix(seed).
double uniform(std::uint64_t seed, std::uint64_t step) {
  return static_cast<double>(mix(mix(seed) + (step + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

std::int32_t best_token(std::span<const float> logits) {
  std::int32_t best = -1;
  bool bad = false;
  float best_logit = -INFINITY;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    bad |= !(logits[i] < INFINITY);
    if (logits[i] > best_logit) {
      best_logit = logits[i];
      best = static_cast<std::int32_t>(i);
    }
  }
  if (bad || best < 0)
    fail(ErrorCode::BadInput, "E_LOGITS", "sample: the {} logits hold NaN or infinity, or none is finite",
         logits.size());
  return best;
}

// Walks `candidates` until their weights reach `target`; the last one takes what rounding leaves over.
template <typename Weight>
std::int32_t pick(std::span<const Candidate> candidates, double target, const Weight& weight) {
  std::int32_t chosen = candidates.front().id;
  for (const Candidate& c : candidates) {
    const double w = weight(c.logit);
    if (w > 0) chosen = c.id;
    target -= w;
    if (target < 0) break;
  }
  return chosen;
}

}  // namespace

void check_sampling(const SamplingParams& params) {
  const auto range = [](const char* field, float value, bool ok) {
    if (!ok) fail(ErrorCode::BadInput, "E_SAMPLING", "sampling: {} is {}, out of range", field, value);
  };
  // Written so that NaN fails.
  range("temperature", params.temperature, params.temperature >= 0 && params.temperature <= 100);
  range("top_p", params.top_p, params.top_p > 0 && params.top_p <= 1);
  range("min_p", params.min_p, params.min_p >= 0 && params.min_p <= 1);
  if (params.top_k < 0) fail(ErrorCode::BadInput, "E_SAMPLING", "sampling: top_k is {}, out of range", params.top_k);
}

std::int32_t sample(std::span<const float> logits, const SamplingParams& params, std::uint64_t step) {
  check_sampling(params);
  const std::int32_t best = best_token(logits);
  if (params.temperature == 0 || params.top_k == 1) return best;

  const double max = logits[static_cast<std::size_t>(best)];
  const auto weight = [&](float logit) { return std::exp((logit - max) / params.temperature); };
  const auto sum = [&](std::span<const Candidate> some) {
    double total = 0;
    for (const Candidate& c : some) total += weight(c.logit);
    return total;
  };
  std::vector<Candidate> candidates(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) candidates[i] = {logits[i], static_cast<std::int32_t>(i)};

  // Each filter keeps a prefix of the candidates in order of their logits.
  std::span<Candidate> kept = candidates;
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < kept.size()) {
    std::nth_element(kept.begin(), kept.begin() + params.top_k, kept.end(),
                     [](auto& a, auto& b) { return worse(b, a); });
    kept = kept.first(static_cast<std::size_t>(params.top_k));
  }
  double total = sum(kept);
  if (params.top_p < 1 || params.min_p > 0) {
    // Heap order: only the candidates that survive are ever sorted.
    std::make_heap(kept.begin(), kept.end(), worse);
    std::size_t count = 0;
    double mass = 0;
    while (count < kept.size() && (count == 0 || mass < params.top_p * total)) {
      std::pop_heap(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(count), worse);
      const double w = weight((kept.end() - static_cast<std::ptrdiff_t>(count) - 1)->logit);
      if (w < params.min_p) break;
      mass += w;
      ++count;
    }
    kept = kept.last(count);
    total = sum(kept);
  }
  return pick(kept, uniform(params.seed, step) * total, weight);
}

}  // namespace rarefy::ops
