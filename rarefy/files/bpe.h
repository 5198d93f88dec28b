// Byte-pair encoding of one piece of text: merges by rank, in time n log n and without recursion.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace rarefy::files {

/// The merges of a vocabulary: (left id, right id) to rank and merged id. Lower ranks merge first, ties from the left.
class Bpe {
 public:
  struct Merge {
    std::int32_t rank;
    std::int32_t id;
  };

  /// Keeps the first merge of a pair.
  void add(std::int32_t left, std::int32_t right, Merge merge) { merges_.emplace(key(left, right), merge); }
  std::size_t size() const { return merges_.size(); }

  /// Merges `symbols` (ids of single bytes or characters) in place until no pair has a merge.
  void apply(std::vector<std::int32_t>& symbols) const;

 private:
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const auto found = merges_.find(key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }
  void apply_short(std::vector<std::int32_t>& symbols) const;
  void apply_long(std::vector<std::int32_t>& symbols) const;

  struct Hash {
    std::size_t operator()(std::uint64_t x) const {
      x = (x ^ x >> 31) * 0x9e3779b97f4a7c15ull;
      return x ^ x >> 32;
    }
  };
  std::unordered_map<std::uint64_t, Merge, Hash> merges_;
};

}  // namespace rarefy::files
