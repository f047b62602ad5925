// OpenAI's /v1/audio/transcriptions and /v1/audio/translations.
#include "engine/speech/speech_engine.h"
#include "server/audio/transcription_call.h"
#include "server/audio/transcription_form.h"
#include "server/errors.h"
#include "server/routes.h"

namespace espalier::server {
namespace {

void start_transcription(const ContextPtr& context, net::HttpRequest&& request,
                         const net::ResponsePtr& response, bool translate) {
  if (context->stopping) return response->send(http_error(503, "the server is stopping"));
  if (transcriber_of(context->engine) == nullptr)
    return response->send(
        error_response(Dialect::kOpenAi,
                       error(StatusCode::kUnimplemented,
                             "this server's model reads no speech: start one with a Whisper model "
                             "(--model-path openai/whisper-small)")));
  const auto call = std::make_shared<TranscriptionCall>(context, response, translate);
  auto moved = std::make_shared<net::HttpRequest>(std::move(request));  // the task is copyable
  const bool queued = context->threads->sounds.run([call, moved, response] {
    try {
      call->begin(std::move(*moved));
    } catch (const std::exception&) {  // a third party's: bad_alloc
      response->send(http_error(503, "no memory for the audio: try again later"));
    }
  });
  if (!queued) response->send(http_error(503, "too many sounds at once: try again later"));
}

void handle_transcriptions(const ContextPtr& context, net::HttpRequest&& request,
                           net::ResponsePtr response) {
  start_transcription(context, std::move(request), response, false);
}

void handle_translations(const ContextPtr& context, net::HttpRequest&& request,
                         net::ResponsePtr response) {
  start_transcription(context, std::move(request), response, true);
}

}  // namespace

const std::vector<Route>& audio_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/v1/audio/transcriptions",
       kUser,
       "Speech to text (OpenAI)",
       handle_transcriptions,
       "TranscriptionRequest",
       transcription_schema,
       200,
       "multipart/form-data"},
      {{"POST"},
       "/v1/audio/translations",
       kUser,
       "Speech to English text (OpenAI)",
       handle_translations,
       "TranslationRequest",
       translation_schema,
       200,
       "multipart/form-data"},
  };
  return table;
}

}  // namespace espalier::server
