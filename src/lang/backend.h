// Back ends: what runs a program's calls. One interface over an engine in this process, a server of
// ours or SGLang's, and the OpenAI and Anthropic APIs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "lang/choices.h"
#include "lang/expr.h"
#include "lang/options.h"

namespace espalier::lang {

class Pool;

// One piece of a message: text, or an image or video by its path or data.
struct Part {
  std::string text;
  std::optional<Media> media;
};

struct Message {
  Role role = Role::kUser;
  std::vector<Part> parts;

  std::string text() const;  // of its text parts
};

// Branches whose cached keys and values a back end has put behind each other (Backend::join): what
// stands for the beginning of a prompt that goes on from them. Immutable, shared by such prompts.
struct JoinedPrefix {
  std::string text;          // that it stands for
  std::vector<int32_t> ids;  // its tokens, as the branches have them
  std::string key;           // of its entry in the cache
};

// A prompt state at one moment, in both the forms that back ends read.
struct Prompt {
  std::string text;               // everything so far, messages framed by the back end's role_frame
  std::vector<Message> messages;  // those that have ended
  std::optional<Message> open;    // the message that is being written
  std::vector<Media> media;       // all, in order; each stands as kMediaMark in `text`
  std::shared_ptr<const JoinedPrefix> joined;  // of the beginning of `text`; null: none
};
inline constexpr std::string_view kMediaMark = "<image>";

// The text that a back end puts around a message.
struct RoleFrame {
  std::string begin, end;
  Strings stop;  // what ends a gen inside of it, besides the gen's own stops
};

// One gen. Ids are unique among the calls that a back end holds.
struct GenerateCall {
  std::string id;
  Prompt prompt;
  GenOptions options;   // complete: defaults are in
  bool stream = false;  // on_text is wanted
};

struct MetaInfo {
  std::string id;
  std::string finish_reason;  // "stop", "length", "abort"
  std::string matched;        // the stop string or stop token's id that ended it; "" is none
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  double seconds = 0;  // of the call
  std::string json;    // the whole of it, with log-probabilities, as the native API's meta_info
};

struct Sample {
  std::string text;
  MetaInfo meta;
};

struct Completion {
  std::vector<Sample> samples;  // n of them, at least one
};

// Of a stream, as far as it is.
struct Progress {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  int64_t num_logprobs = 0;  // of output tokens, reported so far
  std::string logprobs;      // those that are new: [logprob, id, text or null] with commas between
};

// Where a call's outcome goes. Called from any thread, never under a lock of the back end; must not
// block. on_done comes exactly once, last, possibly before generate() returns.
struct CallEvents {
  std::function<void(std::string_view delta)> on_text;  // may be null
  std::function<void(Result<Completion>)> on_done;
  // Right before the on_text of the same piece, where a back end knows it; may be null.
  std::function<void(Progress)> on_progress;
};

// One select: what the choices cost after the prompt.
struct ScoreCall {
  std::string id;
  Prompt prompt;
  std::vector<std::string> choices;
  ChoicesMethod method = ChoicesMethod::kTokenLengthNormalized;
};
// Branches to be appended to each other; each begins where `prompt` ends.
struct JoinCall {
  std::string id;
  Prompt prompt;
  std::vector<std::string> branches;  // texts, two or more, none empty
};
using JoinDone = std::function<void(Result<std::shared_ptr<const JoinedPrefix>>)>;
using ScoreDone = std::function<void(Result<std::vector<ChoiceScore>>)>;

// What was sent and what it cost, over the life of a back end.
struct Usage {
  int64_t num_calls = 0, num_retries = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double dollars = 0;  // by the prices of its configuration
  // What API speculation spared: calls that were answered from an earlier call's text, the input
  // tokens that they would have sent (counted by the API for the earlier call, estimated for the
  // text that came since) and their price.
  int64_t num_calls_saved = 0, prompt_tokens_saved = 0;
  double dollars_saved = 0;
};

// Thread-safe. None of the calls blocks longer than it takes to hand the work over, but flush_cache
// and server_info, which wait for an answer. A back end outlives its calls: its destructor ends
// them with kAborted.
class Backend {
 public:
  virtual ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string name() const = 0;  // "engine", "http://127.0.0.1:30000"

  // True where an API reads messages and writes whole ones: it cannot go on with arbitrary text.
  virtual bool is_chat() const { return false; }
  // True for APIs that are paid by the call: num_api_spec_tokens takes effect.
  virtual bool is_api() const { return false; }
  virtual double dollars_per_input_token() const { return 0; }
  // `previous`: the role of the message before; none opens the conversation.
  virtual RoleFrame role_frame(Role role, std::optional<Role> previous) const = 0;

  virtual void generate(GenerateCall call, CallEvents events) = 0;
  // kUnimplemented by name for back ends or methods that cannot.
  virtual void score(ScoreCall call, ScoreDone done) = 0;
  // Computes the prompt so that what follows finds it in the cache. `done` comes when it is there,
  // at once where there is no cache to fill.
  virtual void prefetch(std::string id, const Prompt& prompt, std::function<void(Status)> done);
  virtual bool can_prefetch() const { return false; }
  // Puts what is cached of branches behind each other, computing what is not: the paper's parallel
  // encoding, an approximation (docs/lang.md). Fails where it cannot; the joined text is then one
  // prompt like others.
  virtual void join(JoinCall call, JoinDone done);
  virtual bool can_join() const { return false; }
  // Ends a call; its on_done comes with kAborted. Unknown ids are no error.
  virtual void cancel(const std::string& id) = 0;

  virtual Status flush_cache();
  virtual Result<std::string> server_info();  // JSON

  Usage usage() const;
  void count(const Usage& more);  // adds

  // Where the streams of this back end's programs go on after a call: few threads for all of them.
  Pool& pool() { return *pool_; }

 protected:
  Backend();

 private:
  std::unique_ptr<Pool> pool_;
  struct Counters;
  std::unique_ptr<Counters> counters_;
};

}  // namespace espalier::lang
