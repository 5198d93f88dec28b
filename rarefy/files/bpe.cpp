// Merging of short pieces by scanning, of long ones by buckets of equal rank.
#include "rarefy/files/bpe.h"

#include <algorithm>
#include <limits>
#include <map>

namespace rarefy::files {

void Bpe::apply(std::vector<std::int32_t>& symbols) const {
  // Words are short: scanning them beats any queue. Long runs must not be quadratic.
  constexpr std::size_t kShort = 48;
  if (symbols.size() <= kShort)
    apply_short(symbols);
  else
    apply_long(symbols);
}

void Bpe::apply_short(std::vector<std::int32_t>& symbols) const {
  constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
  std::vector<Merge> pair(symbols.size(), {kNone, 0});  // of symbol i with its right neighbour
  const auto look = [&](std::size_t i) {
    const Merge* merge = i + 1 < symbols.size() ? find(symbols[i], symbols[i + 1]) : nullptr;
    pair[i] = merge != nullptr ? *merge : Merge{kNone, 0};
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) look(i);
  while (symbols.size() > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < symbols.size(); ++i)
      if (pair[i].rank < pair[best].rank) best = i;
    if (pair[best].rank == kNone) return;
    symbols[best] = pair[best].id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pair.erase(pair.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    look(best);
    if (best > 0) look(best - 1);
  }
}

void Bpe::apply_long(std::vector<std::int32_t>& symbols) const {
  // A linked list over the symbols, and per rank the places where such a pair stood when it was seen. A place is
  // checked again when its turn comes, since its symbols may have changed.
  const auto count = static_cast<std::int32_t>(symbols.size());
  std::vector<std::int32_t> next(symbols.size()), previous(symbols.size());
  std::map<std::int32_t, std::vector<std::int32_t>> buckets;
  const auto look = [&](std::int32_t left) {
    if (left < 0 || next[static_cast<std::size_t>(left)] == count) return std::numeric_limits<std::int32_t>::max();
    const Merge* merge = find(symbols[static_cast<std::size_t>(left)],
                              symbols[static_cast<std::size_t>(next[static_cast<std::size_t>(left)])]);
    if (merge == nullptr) return std::numeric_limits<std::int32_t>::max();
    buckets[merge->rank].push_back(left);
    return merge->rank;
  };
  for (std::int32_t i = 0; i < count; ++i) {
    next[static_cast<std::size_t>(i)] = i + 1;
    previous[static_cast<std::size_t>(i)] = i - 1;
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) look(i);
  constexpr std::int32_t kDead = -1;
  while (!buckets.empty()) {
    const auto first = buckets.begin();
    const std::int32_t rank = first->first;
    std::vector<std::int32_t> places = std::move(first->second);
    buckets.erase(first);
    std::sort(places.begin(), places.end());
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto left = static_cast<std::size_t>(places[i]);
      if (symbols[left] == kDead || next[left] == count) continue;
      const auto right = static_cast<std::size_t>(next[left]);
      const Merge* merge = find(symbols[left], symbols[right]);
      if (merge == nullptr || merge->rank != rank) continue;
      symbols[left] = merge->id;
      symbols[right] = kDead;
      next[left] = next[right];
      if (next[left] < count) previous[static_cast<std::size_t>(next[left])] = static_cast<std::int32_t>(left);
      const std::int32_t lowest = std::min(look(previous[left]), look(static_cast<std::int32_t>(left)));
      if (lowest < rank) {  // a better pair came up: it goes first
        std::vector<std::int32_t>& rest = buckets[rank];
        rest.insert(rest.end(), places.begin() + static_cast<std::ptrdiff_t>(i) + 1, places.end());
        break;
      }
    }
  }
  std::erase(symbols, kDead);
}

}  // namespace rarefy::files
