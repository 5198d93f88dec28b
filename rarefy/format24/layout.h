// The page format: where every value and every metadata bit of dense and sparse pages lies (DESIGN.md, section 4).
#pragma once
#include <cstdint>

namespace rarefy::format24 {

/// Tokens of a block.
inline constexpr int kBlock = 64;

/// Which half of the cache a page belongs to: keys are 2:4 along channels, values along tokens.
enum class Side : std::uint8_t { K, V };

constexpr bool supported_head_dim(int head_dim) { return head_dim == 64 || head_dim == 128; }

constexpr std::int64_t dense_page_bytes(int head_dim) { return std::int64_t{kBlock} * head_dim * 2; }
constexpr std::int64_t nonzero_bytes(int head_dim) { return dense_page_bytes(head_dim) / 2; }
constexpr std::int64_t metadata_bytes(int head_dim) { return dense_page_bytes(head_dim) / 16; }
constexpr std::int64_t sparse_page_bytes(int head_dim) { return nonzero_bytes(head_dim) + metadata_bytes(head_dim); }

/// Byte `byte` of row `row` under the hardware's swizzle for rows of 128 B (16-byte chunk ^= row mod 8).
constexpr int swizzle128(int row, int byte) { return row * 128 + ((((byte >> 4) ^ (row & 7)) << 4) | (byte & 15)); }
/// The same for rows of 64 B (16-byte chunk ^= row / 2 mod 4).
constexpr int swizzle64(int row, int byte) {
  return row * 64 + ((((byte >> 4) ^ ((row >> 1) & 3)) << 4) | (byte & 15));
}

/// Byte offset of (token, channel) in a dense page: panels of 64 channels, each 64 rows of 128 B.
constexpr int dense_offset(int token, int channel) {
  return (channel / 64) * (kBlock * 128) + swizzle128(token, (channel % 64) * 2);
}

/// Byte offset of non-zero `j` (0 .. head_dim / 2 - 1) of a key's row; groups of four channels give two each.
constexpr int k_nonzero_offset(int token, int j, int head_dim) {
  return head_dim == 64 ? swizzle64(token, j * 2) : swizzle128(token, j * 2);
}

/// Byte offset of non-zero row `r` (0 .. 31; tokens 4 (r / 2) .. + 3 give two rows) of channel `channel` of a V page.
constexpr int v_nonzero_offset(int r, int channel) {
  return (channel / 64) * (kBlock / 2 * 128) + swizzle128(r, (channel % 64) * 2);
}

/// Place of one group's four metadata bits: word index after the non-zeros, and shift inside the word.
struct MetadataPlace {
  int word;
  int shift;
};

/// `row` of the sparse operand, `group` of four values along its reduction axis of `reduction` values (register order:
/// a tile of 16 rows and 64 values is 32 words, word = lane; see DESIGN.md 4).
constexpr MetadataPlace metadata_place(int row, int group, int reduction) {
  const int tile = row / 16, q = row % 8, high = (row / 8) % 2;
  const int step = group / 16, half = (group / 8) % 2, sixteen = (group / 4) % 2;
  const int lane = q * 4 + half * 2 + sixteen;
  return {(tile * (reduction / 64) + step) * 32 + lane, high * 16 + (group % 4) * 4};
}
/// Keys: rows are tokens, the reduction axis is head_dim. Values: rows are channels, the reduction axis is the block.
constexpr MetadataPlace k_metadata_place(int token, int group, int head_dim) {
  return metadata_place(token, group, head_dim);
}
constexpr MetadataPlace v_metadata_place(int channel, int group) { return metadata_place(channel, group, kBlock); }

}  // namespace rarefy::format24
