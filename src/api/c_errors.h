// How the C interfaces report failures: statuses as codes, messages cut to the caller's buffer, and
// no exception past the boundary. Header only, stateless, thread-safe.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "espalier/status_c.h"

namespace espalier::api {

inline esp_status code_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return ESP_OK;
    case StatusCode::kInvalidArgument:
    case StatusCode::kAlreadyExists:
      return ESP_INVALID_ARGUMENT;
    case StatusCode::kNotFound:
      return ESP_NOT_FOUND;
    case StatusCode::kResourceExhausted:
      return ESP_RESOURCE_EXHAUSTED;
    case StatusCode::kFailedPrecondition:
      return ESP_FAILED_PRECONDITION;
    case StatusCode::kUnimplemented:
      return ESP_UNIMPLEMENTED;
    case StatusCode::kUnavailable:
      return ESP_UNAVAILABLE;
    case StatusCode::kAborted:
      return ESP_ABORTED;
    case StatusCode::kDeadlineExceeded:
      return ESP_DEADLINE_EXCEEDED;
    case StatusCode::kDataLoss:
      return ESP_DATA_LOSS;
    default:
      return ESP_INTERNAL;
  }
}

// Writes `message` and a zero byte, cut to `error_size` bytes.
inline void write_message(std::string_view message, char* error, size_t error_size) {
  if (error == nullptr || error_size == 0) return;
  const size_t size = std::min(message.size(), error_size - 1);
  std::memcpy(error, message.data(), size);
  error[size] = '\0';
}

// Runs `make`, which gives a Result<T>, and hands its value out as an owned T. `short_memory` is
// the message when memory runs out.
template <typename T, typename Make>
esp_status create(T** out, char* error, size_t error_size, std::string_view short_memory,
                  Make make) {
  if (out == nullptr) {
    write_message("the place for the result is NULL; pass an address", error, error_size);
    return ESP_INVALID_ARGUMENT;
  }
  *out = nullptr;
  try {
    Result<T> made = make();
    if (!made) {
      write_message(made.error().message(), error, error_size);
      return code_of(made.error());
    }
    *out = new T(std::move(*made));
    return ESP_OK;
  } catch (const std::bad_alloc&) {
    write_message(short_memory, error, error_size);
    return ESP_RESOURCE_EXHAUSTED;
  } catch (const std::exception& failure) {
    write_message(failure.what(), error, error_size);
    return ESP_INTERNAL;
  }
}

}  // namespace espalier::api
