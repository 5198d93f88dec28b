// Choice of the next token: greedy, or drawn from the tokens that top-k, top-p and min-p leave.
#include "rarefy/ops/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "rarefy/base/check.h"
#include "rarefy/ops/cpu.h"

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

// exp((logit - max) / temperature) of every candidate.
std::vector<float> weights_of(std::span<const Candidate> candidates, float max, float temperature) {
  std::vector<float> weights(candidates.size());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = candidates[i].logit;
  cpu::softmax_weights(weights, max, temperature);
  return weights;
}

double total_of(std::span<const float> weights) { return std::accumulate(weights.begin(), weights.end(), 0.0); }

// top-p, then min-p: both keep the first of the candidates in order of their logits. A heap, for only those that stay
// are ever sorted.
void keep_likely(std::vector<Candidate>& candidates, const SamplingParams& params, float max) {
  const double enough = params.top_p * total_of(weights_of(candidates, max, params.temperature));
  std::make_heap(candidates.begin(), candidates.end(), worse);
  auto kept = candidates.end();
  double mass = 0;
  while (kept != candidates.begin() && (kept == candidates.end() || params.top_p == 1 || mass < enough)) {
    std::pop_heap(candidates.begin(), kept, worse);
    const double weight = std::exp((static_cast<double>((kept - 1)->logit) - max) / params.temperature);
    if (weight < params.min_p) break;
    mass += weight;
    --kept;
  }
  candidates.erase(candidates.begin(), kept);
}

// Index at which the running sum of `weights` passes `target`; the last one above 0 takes what rounding leaves.
std::size_t pick(std::span<const float> weights, double target) {
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < weights.size() && target >= 0; ++i) {
    if (weights[i] > 0) chosen = i;
    target -= weights[i];
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
  const float max = cpu::largest_logit(logits);
  if (!std::isfinite(max))
    fail(ErrorCode::BadInput, "E_LOGITS", "sample: the {} logits hold NaN or infinity, or none is finite",
         logits.size());
  if (params.temperature == 0 || params.top_k == 1)
    return static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());

  std::vector<Candidate> candidates(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) candidates[i] = {logits[i], static_cast<std::int32_t>(i)};
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < candidates.size()) {
    std::partial_sort(candidates.begin(), candidates.begin() + params.top_k, candidates.end(),
                      [](const Candidate& a, const Candidate& b) { return worse(b, a); });
    candidates.resize(static_cast<std::size_t>(params.top_k));
  }
  if (params.top_p < 1 || params.min_p > 0) keep_likely(candidates, params, max);
  const std::vector<float> weights = weights_of(candidates, max, params.temperature);
  return candidates[pick(weights, uniform(params.seed, step) * total_of(weights))].id;
}

}  // namespace rarefy::ops
