// Names of error codes, exit statuses, and the slow path of CHECK.
#include "rarefy/base/check.h"

namespace rarefy {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::BadInput:
      return "BadInput";
    case ErrorCode::BadFile:
      return "BadFile";
    case ErrorCode::Unsupported:
      return "Unsupported";
    case ErrorCode::NotFound:
      return "NotFound";
    case ErrorCode::OutOfMemory:
      return "OutOfMemory";
    case ErrorCode::Cuda:
      return "Cuda";
    case ErrorCode::Io:
      return "Io";
  }
  return "?";
}

int exit_status(const Error& error) {
  switch (error.code()) {
    case ErrorCode::BadInput:
      return 2;
    case ErrorCode::BadFile:
      return 65;
    case ErrorCode::Unsupported:
      return 65;
    case ErrorCode::NotFound:
      return 66;
    case ErrorCode::OutOfMemory:
      return 71;
    case ErrorCode::Cuda:
      return 70;
    case ErrorCode::Io:
      return 74;
  }
  return 70;
}

namespace detail {
void check_failed(const char* expression, const std::string& message) {
  throw Error(ErrorCode::BadInput, "E_CHECK", fmt::format("{} (check failed: {})", message, expression));
}
}  // namespace detail

}  // namespace rarefy
