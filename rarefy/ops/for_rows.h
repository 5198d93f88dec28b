// A loop over the rows of an operation that starts threads only where they pay.
#pragma once
#include <cstdint>

namespace rarefy::ops::cpu {

/// Calls body(i) for every i in [0, rows), in parallel from nine rows on: a row of a layer takes about a microsecond,
/// as does waking the threads.
template <typename Body>
void for_rows(std::int64_t rows, const Body& body) {
  constexpr std::int64_t kSerialRows = 8;
  if (rows <= kSerialRows) {  // not an `if` clause, which costs a third of a microsecond
    for (std::int64_t i = 0; i < rows; ++i) body(i);
    return;
  }
#pragma omp parallel for
  for (std::int64_t i = 0; i < rows; ++i) body(i);
}

}  // namespace rarefy::ops::cpu
