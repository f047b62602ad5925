#include "server/audio/transcription_call.h"

#include <algorithm>

#include "engine/speech/speech_engine.h"
#include "media/audio.h"
#include "media/resample.h"
#include "server/audio/transcript_text.h"
#include "server/authorize.h"
#include "server/errors.h"
#include "server/json_memory.h"

namespace espalier::server {

using net::HttpResponse;

namespace {

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// OpenAI's error with another status than its code has.
HttpResponse with_status(HttpResponse response, int status) {
  if (status != 0) response.status = status;
  return response;
}

constexpr int kTooLarge = 413, kUnsupportedType = 415;

// Speech has about four tokens a second.
constexpr double kTokensPerSecond = 4;

AudioLimits audio_limits(const Engine& engine) {
  const AudioSettings& settings = engine.config().audio;
  return {.bytes_max = settings.max_audio_bytes, .seconds_max = settings.max_audio_seconds};
}

// What a file of unknown length is taken to hold: Opus at 6 kbit/s has 64 frames a byte.
constexpr int64_t kFramesPerByte = 64;

// What samples, resampled ones and the spectrogram take.
int64_t sound_memory(const TranscriberInfo& info, int64_t num_frames, int32_t sample_rate) {
  constexpr int64_t kFloat = sizeof(float);
  const auto seconds =
      static_cast<int64_t>(static_cast<double>(num_frames) / sample_rate + info.window_seconds) + 1;
  return (num_frames + seconds * (TranscriberInfo::kSampleRate + 100 * info.num_mels)) * kFloat;
}

}  // namespace

void TranscriptionCall::refuse(const Refusal& refusal) {
  response_->send(with_status(error_response(Dialect::kOpenAi, refusal.why), refusal.status));
}

std::optional<TranscriptionCall::Refusal> TranscriptionCall::read_form(
    const net::HttpRequest& request) {
  const std::string* const type = request.header("Content-Type");
  auto form = parse_transcription_form(type != nullptr ? *type : "", request.body, translate_);
  if (form) {
    form_ = std::move(*form);
    return std::nullopt;
  }
  const bool is_form = type != nullptr && type->starts_with("multipart/form-data");
  return Refusal{is_form ? 0 : kUnsupportedType, form.error()};
}

std::optional<TranscriptionCall::Refusal> TranscriptionCall::read_header(
    AudioHeader& header) const {
  const AudioLimits limits = audio_limits(context_->engine);
  const auto bytes = bytes_of(form_.file);
  if (std::ssize(bytes) > limits.bytes_max)
    return Refusal{kTooLarge,
                   invalid_argument("file has {} bytes, more than the {} of --max-audio-bytes: "
                                    "compress it, or send it in parts",
                                    bytes.size(), limits.bytes_max)};
  if (!bytes.empty() && !recognise_audio(bytes))
    return Refusal{kUnsupportedType,
                   invalid_argument(
                       "file is no audio that is read here: send WAV, FLAC, Ogg (Vorbis, Opus) or "
                       "MP3")};
  // Without its own bound on seconds, which has a status of its own.
  AudioLimits any_length = limits;
  any_length.seconds_max = 1e12;
  const auto read = read_audio_header(bytes, any_length);
  if (!read) {
    const bool lacks_library = read.error().code() == StatusCode::kUnimplemented;
    return Refusal{lacks_library ? kUnsupportedType : 0, read.error().with_context("file")};
  }
  header = *read;
  if (header.seconds() > limits.seconds_max || header.num_frames > limits.frames_max())
    return Refusal{kTooLarge,
                   invalid_argument("file has {:.1f} s of sound at {} Hz, more than the {} s of "
                                    "--max-audio-seconds: send it in parts",
                                    header.seconds(), header.sample_rate, limits.seconds_max)};
  return std::nullopt;
}

// Leaves the samples in the form's request, and the file, which is of the body, behind.
std::optional<TranscriptionCall::Refusal> TranscriptionCall::read_sound(const AudioHeader& header,
                                                                        MemoryCharge& charge) {
  const AudioLimits limits = audio_limits(context_->engine);
  const auto bytes = bytes_of(form_.file);
  const TranscriberInfo& info = transcriber_of(context_->engine)->info();
  const int64_t before = charge.bytes();
  // Of a file that does not state its length no more is taken than its bytes may hold.
  const int64_t stated = header.num_frames > 0
                             ? header.num_frames
                             : std::min(limits.frames_max(), kFramesPerByte * std::ssize(bytes));
  const auto hold = [&](int64_t num_frames) {
    return hold_memory(charge, before + sound_memory(info, num_frames, header.sample_rate),
                       "the sound");
  };
  if (Status granted = hold(stated); !granted.ok()) return Refusal{0, std::move(granted)};
  const auto audio = decode_audio(bytes, limits);
  if (!audio) {
    const bool too_long = audio.error().code() == StatusCode::kFailedPrecondition;
    return Refusal{too_long ? kTooLarge : 0, audio.error().with_context("file")};
  }
  if (Status granted = hold(std::ssize(audio->samples)); !granted.ok())
    return Refusal{0, std::move(granted)};
  form_.request.samples =
      resample(audio->samples, audio->sample_rate, TranscriberInfo::kSampleRate);
  if (form_.request.samples.empty()) form_.request.samples = {0.0f};  // of a sample or two
  form_.file = {};
  return std::nullopt;
}

bool TranscriptionCall::admit(const net::HttpRequest& request, double seconds) {
  const TenantPtr tenant = tenant_of(context_->tenants.get(), request);
  if (tenant == nullptr) return true;
  const auto tokens = static_cast<int64_t>(seconds * kTokensPerSecond) + 1;
  const auto wait = tenant->admit(tokens, std::chrono::steady_clock::now());
  if (!wait) {
    reservation_.emplace(tenant, tokens);
    return true;
  }
  tenant->count_refusal();
  response_->send(rate_limited_response(
      Dialect::kOpenAi,
      error(StatusCode::kResourceExhausted,
            "the limits of this key are reached: try again in {:.1f} s", to_seconds(*wait)),
      std::chrono::ceil<std::chrono::seconds>(*wait).count()));
  return false;
}

void TranscriptionCall::begin(net::HttpRequest&& request) {
  if (response_->closed()) return;
  MemoryCharge charge = std::move(request.body_charge);
  const auto body_bytes = charge.bytes();
  if (const auto refusal = read_form(request)) return refuse(*refusal);
  AudioHeader header;
  if (const auto refusal = read_header(header)) return refuse(*refusal);
  if (!admit(request, header.seconds())) return;  // before the decoder's work
  if (const auto refusal = read_sound(header, charge)) return refuse(*refusal);
  std::string().swap(request.body);
  (void)charge.resize(charge.bytes() - body_bytes);
  charge_ = std::move(charge);
  submit();
}

void TranscriptionCall::submit() {
  Transcriber& transcriber = *transcriber_of(context_->engine);
  // `form_` is read by the I/O thread from here on, so the request is taken out first.
  TranscriptionRequest request = std::move(form_.request);
  form_.request = {};
  form_.request.temperature = request.temperature;
  const auto id =
      transcriber.submit(std::move(request), [self = shared_from_this()](TranscriptEvent&& event) {
        // Shared: what is posted is copyable.
        auto moved = std::make_shared<TranscriptEvent>(std::move(event));
        self->response_->post([self, moved] { self->on_event(std::move(*moved)); });
      });
  if (!id) return refuse({0, id.error()});
  response_->on_disconnect(
      [context = context_, id = *id] { transcriber_of(context->engine)->cancel(id); });
}

void TranscriptionCall::on_event(TranscriptEvent&& event) {
  if (event.finished && !event.status.ok()) {
    if (!streaming_) return refuse({0, event.status});
    std::string out;
    net::append_sse(out, stream_error(Dialect::kOpenAi, event.status));
    net::append_sse(out, "[DONE]");
    response_->write(std::move(out));
    return response_->finish();
  }
  if (form_.stream && !streaming_) {
    streaming_ = true;
    response_->start_stream(
        200, {{"Content-Type", "text/event-stream; charset=utf-8"}, {"Cache-Control", "no-cache"}});
  }
  if (form_.stream && !event.delta.empty()) {
    std::string out;
    net::append_sse(out, delta_event(event.delta));
    response_->write(std::move(out));
  }
  if (event.finished) finish(event.result);
}

void TranscriptionCall::finish(const Transcription& made) {
  if (reservation_) reservation_->use(made.num_prompt_tokens + made.num_tokens);
  reservation_.reset();
  charge_.release();
  if (!form_.stream)
    return response_->send(
        transcript_response(made, form_.format, translate_, form_.request.temperature));
  std::string out;
  net::append_sse(out, done_event(made));
  net::append_sse(out, "[DONE]");
  response_->write(std::move(out));
  response_->finish();
}

}  // namespace espalier::server
