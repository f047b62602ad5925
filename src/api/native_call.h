// A call of /generate without HTTP: the route's JSON body in, its JSON answers out. It is what the
// Python package's Engine.generate runs.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace espalier::api {

// Thread safety: all() and next() are called by one thread at a time; abort() by any. Both wait,
// and end with kAborted when the waiting thread is interrupted (lang/waiting.h). Ownership: shares
// the engine; its end aborts the requests that still run.
class NativeCall {
 public:
  // Reads and checks the body, and hands its requests to the engine.
  static Result<std::unique_ptr<NativeCall>> submit(std::shared_ptr<Engine> engine,
                                                    std::string_view body);
  ~NativeCall();
  NativeCall(const NativeCall&) = delete;
  NativeCall& operator=(const NativeCall&) = delete;

  bool is_list() const;  // the answer is a list: a batch, or n > 1
  // Waits for the end. The samples as JSON objects, in order.
  Result<std::vector<std::string>> all();
  // Waits for a sample that has grown, and gives all of it as a JSON object; "" at the end.
  Result<std::string> next();
  void abort();

  // JSON Schemas of the body and of its sampling_params.
  static std::string body_schema();
  static std::string sampling_schema();

 private:
  class Answers;
  explicit NativeCall(std::shared_ptr<Answers> answers);
  std::shared_ptr<Answers> answers_;  // shared with the sinks, until the engine has ended them
};

}  // namespace espalier::api
