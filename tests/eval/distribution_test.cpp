// KL, agreement and perplexity on small literal cases.
#include "rarefy/eval/distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "rarefy/base/check.h"

namespace rarefy::eval {
namespace {

TEST(Compare, EqualDistributionsHaveNoDistance) {
  const std::vector<float> logits = {1, 2, 3, 0, 0, 0};
  const Divergence d = compare(logits, logits, 3, std::vector<std::int32_t>{2, 0});
  EXPECT_EQ(d.tokens, 2);
  EXPECT_NEAR(d.kl_mean, 0, 1e-6);
  EXPECT_EQ(d.top1, 1);
  EXPECT_NEAR(d.ppl, d.ppl_reference, 1e-9);
}

TEST(Compare, LiteralCase) {
  // p = (3/4, 1/4), q = (1/4, 3/4): KL = 1/2 ln 3; targets 0: perplexities 4/3 and 4.
  const float l3 = std::log(3.f);
  const std::vector<float> p = {l3, 0}, q = {0, l3};
  const Divergence d = compare(p, q, 2, std::vector<std::int32_t>{0});
  EXPECT_NEAR(d.kl_mean, 0.5 * std::log(3.0), 1e-6);
  EXPECT_EQ(d.top1, 0);
  EXPECT_NEAR(d.ppl_reference, 4.0 / 3, 1e-6);
  EXPECT_NEAR(d.ppl, 4, 1e-5);
}

TEST(Compare, StandardErrorAndPercentile) {
  std::vector<float> p, q;
  std::vector<std::int32_t> targets;
  for (int i = 0; i < 100; ++i) {
    p.insert(p.end(), {0.f, 0.f});
    q.insert(q.end(), {0.f, i == 7 ? 4.f : 0.f});
    targets.push_back(-1);
  }
  const Divergence d = compare(p, q, 2, targets);
  const double one =
      0.5 * std::log(0.5 / (1 / (1 + std::exp(4.0)))) + 0.5 * std::log(0.5 / (std::exp(4.0) / (1 + std::exp(4.0))));
  EXPECT_NEAR(d.kl_mean, one / 100, 1e-6);
  EXPECT_NEAR(d.kl_stderr, one / 100, 1e-6);  // one outlier of a hundred
  EXPECT_NEAR(d.kl_p99, 0, 1e-6);
  EXPECT_EQ(d.ppl, 0);  // no target
  EXPECT_THROW(compare(p, q, 3, targets), Error);
}

}  // namespace
}  // namespace rarefy::eval
