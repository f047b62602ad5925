// The parsed request: what a user's program states, before any of it is interpreted. Its sampling
// fields are SamplingParams of seams/sampling.h. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/sampling.h"
#include "seams/token_event.h"

namespace espalier {

// What a session is opened with (/open_session).
struct SessionOptions {
  std::string id;              // empty: one is made
  int64_t capacity = 0;        // bytes of text that its requests may hold together
  bool streaming = false;      // a request that names no rid continues the last one
  double timeout_seconds = 0;  // closed after so long without a request; 0: never
};

// How a request continues one of its session. What is continued is the prompt and the output of
// `rid`: all of it, its first `offset` tokens, or without the output.
struct SessionParams {
  std::string id;                     // the session's
  std::string rid;                    // of the request that is continued; empty: from nothing
  int32_t offset = 0;                 // tokens kept of what is continued; 0: all
  bool replace = false;               // drop all that continued `rid` before (empty: all there is)
  bool drop_previous_output = false;  // continue the prompt of `rid` alone
};

// How frames of a video's file are sampled: so many a second, or so many of them. Both 0: as the
// model's processor does.
struct VideoSampling {
  double frames_per_second = 0;
  int32_t num_frames = 0;
};

// A picture of a request: a file (JPEG, PNG, WebP, GIF or BMP) as `read` returns it. It is called
// once, on one of the engine's threads for pictures, and may block; what it fails with reaches the
// client.
struct ImageInput {
  std::function<Result<std::string>()> read;
  int64_t source_bytes = 0;  // of memory that `read` takes while it waits
  // Of a video instead: a picture's file for each of its frames, and how many of them are a second
  // (0: it is not known); `read` is not called.
  std::vector<std::function<Result<std::string>()>> frames;
  double frames_per_second = 0;
  // Or the file of a video, as `read` returns it.
  std::optional<VideoSampling> video_file = {};
  bool is_sound =
      false;  // or that of a sound (WAV, FLAC, Ogg or MP3), of a model that takes sounds

  bool is_video() const { return !frames.empty() || video_file.has_value(); }
};

// Where a decode server gets a request's prompt computed: the address of the prefill server's
// bootstrap port (which the prefill server itself ignores), and the number by which the two find
// each other.
struct Bootstrap {
  std::string host;
  int32_t port = 8998;
  uint64_t room = 0;
};

// A control vector that the server was started with, added to the hidden states behind the layers
// [first_layer, last_layer], counted from 0; negative ones from the end.
struct ControlRequest {
  std::string name;
  float scale = 1;
  int32_t first_layer = 0, last_layer = -1;
};

struct GenerateRequest {
  std::string rid;   // empty: the engine makes one
  std::string text;  // used when input_ids is empty
  std::vector<TokenId> input_ids;
  // In the order of their placeholders in the prompt, ModelInfo::images->placeholder: one for each
  // picture, or one for each of its rows.
  std::vector<ImageInput> images;
  SamplingParams sampling;
  bool return_logprob = false;
  int32_t logprob_start_len = -1;  // -1: output only; else from this prompt position
  int32_t top_logprobs_num = 0;
  std::vector<TokenId> token_ids_logprob;
  bool return_token_origins = false;  // TokenEvent::origins
  // TokenEvent::hidden_states, of these states as SamplingSpec::hidden_layers counts them; negative
  // ones from the end: -1 is behind the final norm. Empty: that one.
  bool return_hidden_states = false;
  std::vector<int32_t> hidden_states_layers;
  int32_t priority = 0;
  std::string lora;  // the name of a loaded adapter; empty: the model as it is
  std::optional<ControlRequest> control_vector;
  std::string extra_key;  // requests with different keys never share cache entries
  // Whose the request is, for --fair-share tenant; empty: extra_key says it.
  std::string tenant;
  double tenant_weight = 1;        // of its part, with --fair-share tenant; above 0
  bool add_special_tokens = true;  // of the tokenizer, for `text` (false after a chat template)
  std::optional<SessionParams> session;  // text or input_ids are what is new
  std::optional<Bootstrap> bootstrap;    // with --disaggregation-mode prefill or decode
  // The text's vector instead of what follows it: embedding, classes or reward, as the model makes
  // them. `sampling` counts for nothing then.
  bool embed = false;
  int32_t dimensions = 0;  // of an embedding: its first so many numbers; 0: all
  // With `embed`, of models whose rows of a text see each other (PooledInfo):
  std::optional<std::string> text_pair = {};  // behind `text`, as the tokenizer joins two texts
  enum class TextRole : uint8_t { kNone, kQuery, kDocument };
  TextRole text_role = TextRole::kNone;  // of late interaction
  // The tokenizer truncates longer texts to this many tokens; -1: to the model's maximum; 0: the
  // engine refuses them.
  int32_t truncate_to = 0;
};

// Called on the engine's scheduler thread, in order, never concurrently for one request, the last
// time with a terminal event. Must not block and must not call the engine back, submit and abort
// excepted.
using EventSink = std::function<void(TokenEvent&&)>;

}  // namespace espalier
