// What the paid APIs have in common: prices, usage, streams of server-sent events. Internal to the
// room. Thread-safe: calls share only the HTTP client and the sum of their costs.
#pragma once

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <utility>

#include "lang/backends/http_backends.h"
#include "lang/backends/http_json.h"

namespace espalier::lang {

// A dialect fills in how a call is written and how an answer and an event are read.
class ApiBackend : public Backend {
 public:
  ApiBackend(std::string name, Prices prices, std::unique_ptr<HttpCalls> calls)
      : name_(std::move(name)), prices_(prices), calls_(std::move(calls)) {}

  std::string name() const override { return name_; }
  bool is_api() const override { return true; }
  double dollars_per_input_token() const override { return prices_.input / 1e6; }
  void generate(GenerateCall call, CallEvents events) override;
  void score(ScoreCall call, ScoreDone done) override;
  void cancel(const std::string& id) override { calls_->cancel(id); }

 protected:
  struct Request {
    std::string path;
    boost::json::object body;  // "stream" is added
  };
  virtual Result<Request> write_call(const GenerateCall& call) const = 0;
  virtual Result<Completion> read_answer(const boost::json::object& answer) const = 0;
  // One event of a stream: appends what it brings to `sample`. The text that is new, for on_text.
  virtual Result<std::string> read_event(const boost::json::object& event,
                                         Sample& sample) const = 0;

  void charge(const Completion& completion, int num_retries);
  HttpCalls& calls() { return *calls_; }
  // The dialect's last act in its destructor: no call uses it any more.
  void close() { calls_.reset(); }

 private:
  const std::string name_;
  const Prices prices_;
  std::unique_ptr<HttpCalls> calls_;
};

}  // namespace espalier::lang
