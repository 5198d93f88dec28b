// A cache of random dense and 2:4 pages for tests, written straight from layout.h, with its values beside it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "rarefy/attention/attention.h"

namespace rarefy::attention {

struct CacheSpec {
  DType dtype = DType::F16;
  int head_dim = 64;
  int kv_heads = 2;
  std::vector<int> lengths;
  double sealed_k = 0;  // share of the full blocks that have a sparse page
  double sealed_v = 0;
  bool window = false;        // sealed blocks still have a dense page, with other values
  bool seal_partial = false;  // a last block that is not full may be sealed too
  float magnitude = 1;
  unsigned seed = 1;
};

inline double decoded(DType dtype, std::uint16_t bits) {
  return dtype == DType::F16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
}
inline std::uint16_t encoded(DType dtype, float x) {
  return dtype == DType::F16 ? from_float<Half>(x).bits : from_float<BFloat16>(x).bits;
}

/// One side (K or V) of one block: its values [64, head_dim] as each of its pages holds them.
struct Side {
  std::vector<double> dense, sealed;
  bool has_dense = false;
  bool has_sealed = false;
};

class RandomCache {
 public:
  explicit RandomCache(CacheSpec spec) : spec_(std::move(spec)), random_(spec_.seed) {
    const int batch = static_cast<int>(spec_.lengths.size());
    for (const int length : spec_.lengths) max_blocks_ = std::max(max_blocks_, (length + 63) / 64 + 1);
    const std::size_t slots = static_cast<std::size_t>(batch) + 2;
    slots_.resize(slots);
    std::iota(slots_.begin(), slots_.end(), 0);
    std::shuffle(slots_.begin(), slots_.end(), random_);
    const std::size_t entries = slots * static_cast<std::size_t>(spec_.kv_heads * max_blocks_);
    for (auto* map : {&k_map_, &v_map_, &k_window_, &v_window_}) map->assign(entries, 0);
    sides_.resize(entries * 2);
    const auto places = place_pages(entries * 2);
    for (int b = 0; b < batch; ++b)
      for (int h = 0; h < spec_.kv_heads; ++h)
        for (int i = 0; i * 64 < spec_.lengths[b]; ++i) fill_block(b, h, i, places);
  }

  KvView view() const {
    KvView view;
    view.dtype = spec_.dtype;
    view.head_dim = spec_.head_dim;
    view.kv_heads = spec_.kv_heads;
    view.batch = static_cast<int>(spec_.lengths.size());
    view.max_blocks = max_blocks_;
    view.dense_pages = view.sparse_pages = pages_;
    view.dense = dense_.data();
    view.sparse = sparse_.data();
    view.k_map = k_map_.data();
    view.v_map = v_map_.data();
    view.k_window = spec_.window ? k_window_.data() : nullptr;
    view.v_window = spec_.window ? v_window_.data() : nullptr;
    view.slots = slots_.data();
    view.kv_len = spec_.lengths.data();
    return view;
  }

  /// The values that a reader must see: [64, head_dim]; `windowed` asks for the dense page where there is one.
  const std::vector<double>& values(bool is_v, int sequence, int kv_head, int block, bool windowed) const {
    const Side& side = sides_[at(sequence, kv_head, block) * 2 + is_v];
    return side.has_dense && (windowed || !side.has_sealed) ? side.dense : side.sealed;
  }

  std::size_t at(int sequence, int kv_head, int block) const {
    return static_cast<std::size_t>((slots_[sequence] * spec_.kv_heads + kv_head) * max_blocks_ + block);
  }
  std::size_t map_entries() const { return k_map_.size(); }
  const CacheSpec& spec() const { return spec_; }
  std::vector<std::int32_t>& k_map() { return k_map_; }
  std::vector<std::int32_t>& v_map() { return v_map_; }
  std::vector<std::int32_t>& k_window() { return k_window_; }
  std::vector<int>& lengths() { return spec_.lengths; }
  std::vector<std::int32_t>& slots() { return slots_; }

 private:
  // Random places in both pools; every byte starts as NaN, so that a read of a wrong place shows.
  std::vector<std::int32_t> place_pages(std::size_t count) {
    pages_ = static_cast<std::int32_t>(count) + 3;
    std::vector<std::int32_t> places(static_cast<std::size_t>(pages_));
    std::iota(places.begin(), places.end(), 0);
    std::shuffle(places.begin(), places.end(), random_);
    dense_.assign(places.size() * format24::dense_page_bytes(spec_.head_dim), std::byte{0xff});
    sparse_.assign(places.size() * format24::sparse_page_bytes(spec_.head_dim), std::byte{0xff});
    return places;
  }

  void fill_block(int b, int h, int i, const std::vector<std::int32_t>& places) {
    const int tokens = std::min(64, spec_.lengths[b] - i * 64);
    for (const bool is_v : {false, true}) {
      const std::size_t entry = at(b, h, i), side_at = entry * 2 + is_v;
      Side& side = sides_[side_at];
      const bool may_seal = tokens == 64 || spec_.seal_partial;
      side.has_sealed = may_seal && uniform() < (is_v ? spec_.sealed_v : spec_.sealed_k);
      side.has_dense = !side.has_sealed || spec_.window;
      const std::int32_t place = places[side_at];
      if (side.has_sealed) write_sparse(is_v, place, tokens, side.sealed);
      if (side.has_dense) write_dense(place, tokens, side.dense);
      (is_v ? v_map_ : k_map_)[entry] = side.has_sealed ? -(place + 1) : place + 1;
      if (side.has_sealed && side.has_dense) (is_v ? v_window_ : k_window_)[entry] = place + 1;
    }
  }

  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  std::uint16_t value() { return encoded(spec_.dtype, std::normal_distribution<float>(0, spec_.magnitude)(random_)); }

  void write_dense(std::int32_t place, int tokens, std::vector<double>& values) {
    values.assign(64 * static_cast<std::size_t>(spec_.head_dim), 0);
    std::byte* page = dense_.data() + place * format24::dense_page_bytes(spec_.head_dim);
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < spec_.head_dim; ++c) {
        const std::uint16_t bits = value();
        std::memcpy(page + format24::dense_offset(t, c), &bits, 2);
        values[static_cast<std::size_t>(t * spec_.head_dim + c)] = decoded(spec_.dtype, bits);
      }
    }
  }

  // Values of tokens past the end stay NaN in the page.
  void write_sparse(bool is_v, std::int32_t place, int tokens, std::vector<double>& values) {
    const int head_dim = spec_.head_dim;
    values.assign(64 * static_cast<std::size_t>(head_dim), 0);
    std::byte* page = sparse_.data() + place * format24::sparse_page_bytes(head_dim);
    std::byte* metadata = page + format24::nonzero_bytes(head_dim);
    std::memset(metadata, 0, format24::metadata_bytes(head_dim));
    const int rows = is_v ? head_dim : 64, groups = (is_v ? 64 : head_dim) / 4;
    for (int row = 0; row < rows; ++row) {
      for (int group = 0; group < groups; ++group) {
        static constexpr int kPairs[6][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
        const int* pair = kPairs[random_() % 6];
        const auto where =
            is_v ? format24::v_metadata_place(row, group) : format24::k_metadata_place(row, group, head_dim);
        std::uint32_t word;
        std::memcpy(&word, metadata + where.word * 4, 4);
        word |= static_cast<std::uint32_t>(pair[0] | pair[1] << 2) << where.shift;
        std::memcpy(metadata + where.word * 4, &word, 4);
        for (int kept = 0; kept < 2; ++kept) {
          const int along = group * 4 + pair[kept];
          const int token = is_v ? along : row, channel = is_v ? row : along;
          if (token >= tokens) continue;
          const std::uint16_t bits = value();
          const int offset = is_v ? format24::v_nonzero_offset(group * 2 + kept, channel)
                                  : format24::k_nonzero_offset(token, group * 2 + kept, head_dim);
          std::memcpy(page + offset, &bits, 2);
          values[static_cast<std::size_t>(token * head_dim + channel)] = decoded(spec_.dtype, bits);
        }
      }
    }
  }

  CacheSpec spec_;
  std::mt19937 random_;
  int max_blocks_ = 1;
  std::int32_t pages_ = 0;
  std::vector<std::byte> dense_, sparse_;
  std::vector<std::int32_t> k_map_, v_map_, k_window_, v_window_, slots_;
  std::vector<Side> sides_;
};

inline std::vector<float> random_floats(std::size_t count, unsigned seed, float magnitude = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, magnitude);
  std::vector<float> out(count);
  for (float& x : out) x = normal(random);
  return out;
}

}  // namespace rarefy::attention
