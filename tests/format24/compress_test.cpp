// Sealing against brute force, and back.
#include "rarefy/format24/compress.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "rarefy/base/check.h"
#include "rarefy/format24/compress_cpu.h"

namespace rarefy::format24 {
namespace {

/// A page as values, token-major, and its bytes.
template <typename T>
struct Page {
  int head_dim;
  std::vector<float> values;
  std::vector<std::byte> bytes;

  Page(int dim, std::vector<float> v)
      : head_dim(dim), values(std::move(v)), bytes(static_cast<std::size_t>(dense_page_bytes(dim))) {
    for (int t = 0; t < kBlock; ++t)
      for (int c = 0; c < dim; ++c) {
        const T x = from_float<T>(at(t, c));
        at(t, c) = to_float(x);
        std::memcpy(bytes.data() + dense_offset(t, c), &x, 2);
      }
  }
  float& at(int token, int channel) { return values[static_cast<std::size_t>(token * head_dim + channel)]; }
};

std::vector<float> random_values(int head_dim, unsigned seed, bool coarse = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(kBlock * head_dim));
  for (float& x : out) x = coarse ? std::round(normal(random) * 2) : normal(random);  // coarse: many ties and zeros
  return out;
}

template <typename T>
std::vector<float> sealed(Side side, Page<T>& page, const PruneInput& prune, LossKind kind = LossKind::L1,
                          float* loss = nullptr) {
  std::vector<std::byte> sparse(static_cast<std::size_t>(sparse_page_bytes(page.head_dim))), dense(page.bytes.size());
  const CompressJob job{page.bytes.data(), sparse.data(), prune};
  Stream stream;
  float measured = 0;
  compress(side, dtype_of<T>, page.head_dim, {&job, 1}, kind, &measured, stream);
  const CompressJob only_loss{page.bytes.data(), nullptr, prune};
  float again = 0;
  compress(side, dtype_of<T>, page.head_dim, {&only_loss, 1}, kind, &again, stream);
  EXPECT_EQ(measured, again);
  if (loss != nullptr) *loss = measured;
  decompress(side, dtype_of<T>, page.head_dim, sparse.data(), dense.data());
  std::vector<float> out(page.values.size());
  for (int t = 0; t < kBlock; ++t)
    for (int c = 0; c < page.head_dim; ++c) {
      T x;
      std::memcpy(&x, dense.data() + dense_offset(t, c), 2);
      out[static_cast<std::size_t>(t * page.head_dim + c)] = to_float(x);
    }
  return out;
}

/// Calls `group(indices of four values)` for every group of a side.
template <typename Body>
void each_group(Side side, int head_dim, Body body) {
  for (int t = 0; t < kBlock; ++t)
    for (int c = 0; c < head_dim; ++c) {
      if ((side == Side::K ? c : t) % 4 != 0) continue;
      std::size_t index[4];
      for (int i = 0; i < 4; ++i)
        index[i] = static_cast<std::size_t>(side == Side::K ? t * head_dim + c + i : (t + i) * head_dim + c);
      body(index, t, c);
    }
}

template <typename T>
void magnitude_case(Side side, int head_dim, unsigned seed, bool coarse) {
  Page<T> page(head_dim, random_values(head_dim, seed, coarse));
  float loss = 0;
  const std::vector<float> out = sealed(side, page, {}, LossKind::L1, &loss);
  double expected_loss = 0;
  each_group(side, head_dim, [&](const std::size_t(&index)[4], int, int) {
    int order[4] = {0, 1, 2, 3};
    std::stable_sort(order, order + 4,
                     [&](int a, int b) { return std::fabs(page.values[index[a]]) > std::fabs(page.values[index[b]]); });
    for (int i = 0; i < 4; ++i) {
      const std::size_t at = index[order[i]];
      EXPECT_EQ(out[at], i < 2 ? page.values[at] : 0.f);
      if (i >= 2) expected_loss += std::fabs(page.values[at]);
    }
  });
  EXPECT_NEAR(loss, expected_loss, 1e-5 * expected_loss + 1e-6);
}

TEST(Compress, MagnitudeKeepsTheTwoLargestTiesToTheLowerIndex) {
  for (const Side side : {Side::K, Side::V})
    for (const int head_dim : {64, 128})
      for (unsigned seed = 0; seed < 4; ++seed) {
        magnitude_case<Half>(side, head_dim, seed, seed % 2 == 1);
        magnitude_case<BFloat16>(side, head_dim, seed, seed % 2 == 1);
      }
}

TEST(Compress, PagesThatAre24AlreadyStayAsTheyAre) {
  for (const Side side : {Side::K, Side::V}) {
    Page<Half> page(64, random_values(64, 1));
    Page<Half> pruned(64, sealed(side, page, {}));
    EXPECT_EQ(sealed(side, pruned, {}), pruned.values);
  }
}

TEST(Compress, KeysWithWeights) {
  std::vector<float> weights(128);
  std::mt19937 random(3);
  for (float& w : weights) w = 0.1f + static_cast<float>(random() % 1000) / 250;
  Page<Half> page(128, random_values(128, 5));
  float loss = 0;
  const auto out = sealed(Side::K, page, {.rule = PruneRule::Calibrated, .channel_weights = weights.data()},
                          LossKind::Energy, &loss);
  double expected_loss = 0;
  each_group(Side::K, 128, [&](const std::size_t(&index)[4], int, int channel) {
    int order[4] = {0, 1, 2, 3};
    const auto score = [&](int i) {
      return std::fabs(page.values[index[i]]) * weights[static_cast<std::size_t>(channel + i)];
    };
    std::stable_sort(order, order + 4, [&](int a, int b) { return score(a) > score(b); });
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(out[index[order[i]]], i < 2 ? page.values[index[order[i]]] : 0.f);
      if (i >= 2) expected_loss += std::pow(static_cast<double>(score(order[i])), 2);
    }
  });
  EXPECT_NEAR(loss, expected_loss, 1e-4 * expected_loss);
}

TEST(Compress, EqualWeightsAreMagnitude) {
  const std::vector<float> ones(64, 1.f);
  Page<Half> page(64, random_values(64, 6, true));
  EXPECT_EQ(sealed(Side::K, page, {.rule = PruneRule::Calibrated, .channel_weights = ones.data()}),
            sealed(Side::K, page, {}));
  EXPECT_EQ(sealed(Side::K, page, {.rule = PruneRule::Calibrated}), sealed(Side::K, page, {}));
}

void values_case(const std::vector<float>& weights, unsigned seed) {
  Page<Half> page(64, random_values(64, seed));
  float loss = 0;
  const auto out = sealed(Side::V, page,
                          {.rule = PruneRule::Calibrated, .token_weights = weights.empty() ? nullptr : weights.data()},
                          LossKind::Energy, &loss);
  double total = 0;
  each_group(Side::V, 64, [&](const std::size_t(&index)[4], int token, int) {
    // Brute force over the kept pairs, in lexicographic order: cost a^2 + b^2 + (a + b)^2 / 4 of the dropped pair.
    float w[4], a[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = weights.empty() ? 1.f : weights[static_cast<std::size_t>(token + i)];
      a[i] = w[i] * page.values[index[i]];
    }
    float least = std::numeric_limits<float>::infinity();
    int keep[2] = {0, 1}, drop[2] = {2, 3};
    for (int p = 0; p < 4; ++p)
      for (int q = p + 1; q < 4; ++q) {
        int rest[2], n = 0;
        for (int i = 0; i < 4; ++i)
          if (i != p && i != q) rest[n++] = i;
        const float x = a[rest[0]], y = a[rest[1]], cost = x * x + y * y + (x + y) * (x + y) * 0.25f;
        if (cost < least) {
          least = cost;
          keep[0] = p, keep[1] = q, drop[0] = rest[0], drop[1] = rest[1];
        }
      }
    total += least;
    for (const int i : drop) EXPECT_EQ(out[index[i]], 0.f);
    for (const int i : keep) {
      const float expected = page.values[index[i]] + (a[drop[0]] + a[drop[1]]) * 0.25f * (1 / w[i]);
      EXPECT_EQ(out[index[i]], to_float(from_float<Half>(expected)));
    }
  });
  EXPECT_NEAR(loss, total, 1e-4 * total);
}

TEST(Compress, ValuesTakeTheBestPairAndShareOutTheRemainder) {
  values_case({}, 7);
  std::vector<float> weights(kBlock);
  std::mt19937 random(8);
  for (float& w : weights) w = 1 + static_cast<float>(random() % 100) / 20;
  values_case(weights, 9);
}

template <typename T>
void fast_equals_plain(Side side, int head_dim, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values = random_values(head_dim, seed, seed % 2 == 1), weights(128);
  for (const float special : {INFINITY, -INFINITY, std::nanf(""), -0.f, 1e-7f, 6e4f})
    for (int i = 0; i < (seed % 3 == 0 ? 5 : 0); ++i) values[random() % values.size()] = special;
  for (float& w : weights) w = 1 + static_cast<float>(random() % 100) / 20;
  Page<T> page(head_dim, std::move(values));
  const auto size = static_cast<std::size_t>(sparse_page_bytes(head_dim));
  for (const PruneRule rule : {PruneRule::Magnitude, PruneRule::Calibrated})
    for (const LossKind kind : {LossKind::L1, LossKind::Energy})
      for (const float* w : {static_cast<const float*>(nullptr), static_cast<const float*>(weights.data())}) {
        const PruneInput prune{.rule = rule, .channel_weights = w, .token_weights = w};
        ASSERT_TRUE(cpu::has_fast_rule(side, head_dim, prune));
        std::vector<std::byte> plain(size), fast(size, std::byte{0xff});
        const float a = cpu::compress_page(side, dtype_of<T>, head_dim, {page.bytes.data(), plain.data(), prune}, kind);
        const float b =
            cpu::compress_page_fast(side, dtype_of<T>, head_dim, {page.bytes.data(), fast.data(), prune}, kind);
        const float c = cpu::compress_page_fast(side, dtype_of<T>, head_dim, {page.bytes.data(), nullptr, prune}, kind);
        EXPECT_TRUE(plain == fast) << seed;
        EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << seed << ": " << a << " " << b;
        EXPECT_TRUE(b == c || (std::isnan(b) && std::isnan(c)));
      }
}

TEST(Compress, FastEqualsPlainToTheBit) {
  for (unsigned seed = 0; seed < 12; ++seed)
    for (const Side side : {Side::K, Side::V})
      for (const int head_dim : {64, 128}) {
        fast_equals_plain<Half>(side, head_dim, seed);
        fast_equals_plain<BFloat16>(side, head_dim, seed);
      }
}

RC_GTEST_PROP(Compress, LossIsWhatWasDropped, (unsigned seed)) {
  Page<BFloat16> page(64, random_values(64, seed));
  float loss = 0;
  const auto out = sealed(Side::V, page, {}, LossKind::L1, &loss);
  double dropped = 0;
  for (std::size_t i = 0; i < out.size(); ++i) dropped += std::fabs(static_cast<double>(page.values[i]) - out[i]);
  RC_ASSERT(std::fabs(dropped - loss) <= 1e-4 * dropped + 1e-6);
}

TEST(Compress, ElementMasks) {
  for (const Side side : {Side::K, Side::V}) {
    Page<Half> page(64, random_values(64, 10));
    std::vector<std::uint8_t> mask(page.values.size());
    std::mt19937 random(11);
    each_group(side, 64, [&](const std::size_t(&index)[4], int, int) {
      for (unsigned kept = random() % 3; kept > 0; --kept) mask[index[random() % 4]] = 1;  // none, one or two of four
    });
    const auto out = sealed(side, page, {.rule = PruneRule::Elements, .elements = mask.data()});
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], mask[i] != 0 ? page.values[i] : 0.f);
  }
}

TEST(Compress, ChannelMasks) {
  Page<Half> page(64, random_values(64, 12));
  std::vector<std::uint8_t> mask(64, 1);
  for (const int c : {0, 1, 2, 5, 9, 10}) mask[static_cast<std::size_t>(c)] = 0;
  for (const Side side : {Side::K, Side::V}) {
    const auto out = sealed(side, page, {.rule = PruneRule::Channels, .channels = mask.data()});
    for (int t = 0; t < kBlock; ++t) {
      for (int c = 0; c < 64; ++c)
        if (mask[static_cast<std::size_t>(c)] == 0) {
          EXPECT_EQ(out[static_cast<std::size_t>(t * 64 + c)], 0.f);
        }
      if (side == Side::K) {
        EXPECT_EQ(out[static_cast<std::size_t>(t * 64 + 3)], page.at(t, 3));  // the only one left of its group
      }
    }
  }
}

TEST(Compress, NanIsKept) {
  Page<Half> page(64, random_values(64, 13));
  page = Page<Half>(64, [&] {
    auto v = page.values;
    v[2] = std::nanf("");
    return v;
  }());
  EXPECT_TRUE(std::isnan(sealed(Side::K, page, {})[2]));
}

TEST(Compress, Errors) {
  Page<Half> page(64, random_values(64, 14));
  std::vector<std::byte> sparse(static_cast<std::size_t>(sparse_page_bytes(64)));
  Stream stream;
  const auto error = [&](const CompressJob& job, DType dtype = DType::F16, int head_dim = 64) -> std::string {
    try {
      compress(Side::K, dtype, head_dim, {&job, 1}, LossKind::L1, nullptr, stream);
      return "done";
    } catch (const Error& e) {
      return e.id();
    }
  };
  EXPECT_EQ(error({page.bytes.data(), sparse.data(), {}}), "done");
  EXPECT_EQ(error({nullptr, sparse.data(), {}}), "E_CHECK");
  EXPECT_EQ(error({page.bytes.data(), sparse.data(), {.rule = PruneRule::Elements}}), "E_CHECK");
  EXPECT_EQ(error({page.bytes.data(), sparse.data(), {.rule = PruneRule::Channels}}), "E_CHECK");
  const std::vector<std::uint8_t> all(page.values.size(), 1);
  EXPECT_EQ(error({page.bytes.data(), sparse.data(), {.rule = PruneRule::Elements, .elements = all.data()}}),
            "E_CHECK");
  EXPECT_EQ(error({page.bytes.data(), sparse.data(), {}}, DType::F32), "E_DTYPE");
  EXPECT_EQ(error({page.bytes.data(), sparse.data(), {}}, DType::F16, 96), "E_HEAD_DIM");
  compress(Side::K, DType::F16, 64, {}, LossKind::L1, nullptr, stream);  // no jobs: nothing
}

TEST(Decompress, RefusesMetadataThatDoesNotAscend) {
  Page<Half> page(64, random_values(64, 15));
  for (const Side side : {Side::K, Side::V}) {
    std::vector<std::byte> sparse(static_cast<std::size_t>(sparse_page_bytes(64))), dense(page.bytes.size());
    const CompressJob job{page.bytes.data(), sparse.data(), {}};
    Stream stream;
    compress(side, DType::F16, 64, {&job, 1}, LossKind::L1, nullptr, stream);
    int refused = 0;
    for (std::int64_t bit = 0; bit < metadata_bytes(64) * 8; ++bit) {
      auto flipped = sparse;
      flipped[static_cast<std::size_t>(nonzero_bytes(64) + bit / 8)] ^= static_cast<std::byte>(1 << bit % 8);
      try {
        decompress(side, DType::F16, 64, flipped.data(), dense.data());
      } catch (const Error& e) {
        EXPECT_EQ(e.id(), "E_METADATA");
        ++refused;
      }
    }
    EXPECT_GT(refused, 0);
  }
}

}  // namespace
}  // namespace rarefy::format24
