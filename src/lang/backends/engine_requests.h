// Requests of the language to an engine in this process, and prompts as its tokens. Internal to the
// room.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "lang/backend.h"
#include "lang/backends/submission_queue.h"

namespace espalier::lang {

// Thread-safe. The engine may have other clients at the same time. Sinks may refer to this object:
// its destructor cancels all requests and waits for their end.
class EngineRequests {
 public:
  explicit EngineRequests(std::shared_ptr<Engine> engine);
  ~EngineRequests();
  EngineRequests(const EngineRequests&) = delete;
  EngineRequests& operator=(const EngineRequests&) = delete;

  Engine& engine() const { return *engine_; }
  const std::shared_ptr<Engine>& shared_engine() const { return engine_; }

  // Submits now, or once the engine has room. After the finish event of the last sample the sink's
  // owner calls ended(), as the last act of the request; not after `refused`.
  void send(Submission s);
  void ended(const std::string& rid, int64_t num_samples);
  // Ends the requests of a call; those that wait are refused with kAborted. "": all.
  void cancel(const std::string& call);

  // The tokens of a prompt with `more` behind it. A joined prefix has those of its branches, and a
  // picture as many placeholders as it has rows.
  std::vector<TokenId> encode(const Prompt& prompt, std::string_view more = {}) const;
  // Of text that is not the beginning of a prompt.
  std::vector<TokenId> encode_part(std::string_view text) const;
  GenerateRequest request_of(std::string rid, const Prompt& prompt) const;
  static std::string cache_key(const Prompt& prompt);
  // The prompt's pictures, whose files are read by the engine's threads.
  static std::vector<ImageInput> images_of(const Prompt& prompt);

 private:
  bool submit_now(Submission& s);
  // The prompt's text with its pictures marked (mark_pictures); as it is where they do not fit.
  std::string marked(const Prompt& prompt, std::string text) const;
  std::vector<TokenId> encode_text(const Prompt& prompt, std::string_view more) const;

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<SubmissionQueue>
      queue_;  // shared with sinks that end during the destructor
};

}  // namespace espalier::lang
