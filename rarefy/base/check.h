// The one error type of Rarefy, the checks that throw it, and its mapping to exit codes.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace rarefy {

/// What went wrong, coarsely: decides the exit code and the HTTP status.
enum class ErrorCode { BadInput, BadFile, Unsupported, NotFound, OutOfMemory, Cuda, Io };

const char* to_string(ErrorCode code);

/// Every error that Rarefy reports.
///   code  the class of the error;  id  a stable name for this very check ("E_GGUF_OFFSET"), may be empty;
///   what()  one line that names the file, the field and the byte offset (or the tensor, or the option).
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string id, const std::string& message)
      : std::runtime_error(message), code_(code), id_(std::move(id)) {}
  ErrorCode code() const { return code_; }
  const std::string& id() const { return id_; }

 private:
  ErrorCode code_;
  std::string id_;
};

/// Process exit status of an error: 2 usage, 65 bad file or unsupported, 66 missing file, 70 device dead, 71 out of
/// memory, 74 I/O.
int exit_status(const Error& error);

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, std::string id, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, std::move(id), fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {
[[noreturn]] void check_failed(const char* expression, const std::string& message);
}

/// Adds and multiplies sizes that came from outside. Each returns false on overflow and leaves `out` unspecified.
inline bool checked_add(std::uint64_t a, std::uint64_t b, std::uint64_t& out) {
  return !__builtin_add_overflow(a, b, &out);
}
inline bool checked_mul(std::uint64_t a, std::uint64_t b, std::uint64_t& out) {
  return !__builtin_mul_overflow(a, b, &out);
}

}  // namespace rarefy

/// Throws BadInput with the expression and a formatted message (which should give the values) when `cond` is false.
#define CHECK(cond, ...)                                                 \
  do {                                                                   \
    if (!(cond)) [[unlikely]]                                            \
      ::rarefy::detail::check_failed(#cond, ::fmt::format(__VA_ARGS__)); \
  } while (0)
