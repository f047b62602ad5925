// Speech to text by a model of the Whisper family, on the CPU or a GPU.
//
//   ESP_ASSIGN_OR_RETURN(auto transcriber, Transcriber::create({.path = "whisper-tiny"}));
//   ESP_ASSIGN_OR_RETURN(auto id, transcriber->submit({.samples = sound}, [](auto&& event) {...}));
//
// A sound is read in windows of 30 s, one after another. The windows of all requests are decoded
// together, a token of each in a step; a request's text does not depend on the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/vocab_view.h"
#include "speech/whisper_runner.h"

namespace espalier {

class Tokenizer;

struct TranscriberOptions {
  std::filesystem::path path;           // a folder of Hugging Face's: openai/whisper-*
  std::string dtype = "auto";           // auto, float32, bfloat16
  int32_t num_threads = 0;              // 0: one a usable core
  int32_t running_max = 0;              // requests whose windows are decoded together; 0: 8
  int32_t waiting_max = 0;              // requests beyond; more are refused; 0: 64
  uint64_t seed = 0;                    // of requests at a temperature above 0
  speech::MakeRunner make_runner = {};  // what computes; none: the CPU
};

// What the loaded model is.
struct TranscriberInfo {
  std::string architecture, model_type;
  std::string dtype;  // "float32": of the weights in memory
  int32_t vocab_size = 0, hidden_size = 0;
  int32_t num_encoder_layers = 0, num_decoder_layers = 0, num_heads = 0, head_dim = 0;
  int32_t num_mels = 0;
  int32_t context_length = 0;  // of the decoder, in tokens
  double window_seconds = 0;
  std::vector<std::string> languages;  // codes; empty: English alone
  bool translates = false;             // into English
  int64_t num_parameters = 0, weight_bytes = 0;
  int64_t slot_bytes = 0;  // keys and values of a running request
  int32_t running_max = 0, waiting_max = 0;

  static constexpr int32_t kSampleRate = 16'000;
  static constexpr int64_t kPromptBytesMax = 16 << 10;  // a model reads the last of it
};

struct TranscriptionRequest {
  std::vector<float> samples;  // one channel at TranscriberInfo::kSampleRate
  std::string language;        // a code or an English name; empty: detected
  bool translate = false;      // into English
  std::string prompt;          // text that goes before, as a model of style and spelling
  double temperature = 0;      // 0: the most likely tokens
  int32_t tokens_max = 0;      // generated of a window; 0: as many as there is room for
  bool timestamps = false;     // segments with times; a sound of several windows has them anyway
};

struct TranscriptSegment {
  int32_t id = 0;
  double start = 0, end = 0;  // seconds
  int64_t seek = 0;           // the window's first frame, 0.01 s each
  std::string text;
  std::vector<TokenId> tokens;
  double avg_logprob = 0;     // of the window's tokens
  double no_speech_prob = 0;  // of the window
};

struct Transcription {
  std::string language;  // its code; empty where the model is of English alone
  double duration = 0;   // seconds
  std::string text;
  std::vector<TranscriptSegment> segments;
  int64_t num_prompt_tokens = 0, num_tokens = 0;  // over all windows
};

// A request's events: any number with a delta, then one that ends it, with a result or a failure.
struct TranscriptEvent {
  std::string delta;  // whole characters, behind those of the events before
  bool finished = false;
  Status status;         // of the end; kAborted where it was cancelled
  Transcription result;  // of an end without failure: deltas together are its text
};

// Called on the transcriber's thread; must not block.
using TranscriptSink = std::function<void(TranscriptEvent&&)>;

struct TranscriberStats {
  int32_t num_running = 0, num_waiting = 0;
  int64_t num_total = 0, num_finished = 0, num_aborted = 0;  // aborted ones are finished, too
  int64_t num_prompt_tokens = 0, num_tokens = 0, num_windows = 0, num_steps = 0;
  double audio_seconds = 0;  // of finished requests
  double encode_seconds = 0, decode_seconds = 0;
};

// Thread-safe. Destroying it aborts what runs and joins its thread.
class Transcriber {
 public:
  // Loads the model and starts the thread. Fails by the file and what it lacks.
  static Result<std::unique_ptr<Transcriber>> create(const TranscriberOptions& options);
  virtual ~Transcriber() = default;

  // Validates and enqueues; returns the request's number. After a failure here the sink gets no
  // event. kInvalidArgument for a language or a task that the model lacks, kResourceExhausted where
  // too many wait, kUnavailable after drain().
  virtual Result<uint64_t> submit(TranscriptionRequest request, TranscriptSink sink) = 0;
  // Ends a request soon, with kAborted. An unknown number is no error.
  virtual void cancel(uint64_t id) = 0;
  virtual void cancel_all() = 0;
  // Refuses new requests; those that are there go on.
  virtual void close() = 0;

  virtual TranscriberStats stats() const = 0;
  virtual const TranscriberInfo& info() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;

  // submit(), and waits.
  Result<Transcription> transcribe(TranscriptionRequest request);
};

// What a folder's config.json says of its model, without its weights (num_parameters and the bytes
// are of the tensors' shapes). Fails as create() does.
Result<TranscriberInfo> read_transcriber_info(const TranscriberOptions& options);

// Whether the folder's model is one that a Transcriber reads.
bool is_transcriber(const std::filesystem::path& folder);

}  // namespace espalier
