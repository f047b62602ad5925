#include "server/audio/transcript_text.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>

#include "server/json_writer.h"
#include "speech/languages.h"

namespace espalier::server {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \n") - begin + 1);
}

void write_usage(JsonWriter& w, const Transcription& made) {
  w.key("usage").begin_object().member("type", "duration");
  w.member("seconds", static_cast<int64_t>(std::ceil(made.duration))).end_object();
}

std::string short_json(const Transcription& made) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("text", made.text);
  write_usage(w, made);
  w.end_object();
  return out;
}

void write_segment(JsonWriter& w, const TranscriptSegment& segment, double temperature) {
  w.begin_object().member("id", segment.id).member("seek", segment.seek);
  w.member("start", segment.start).member("end", segment.end).member("text", segment.text);
  w.key("tokens").begin_array();
  for (const TokenId token : segment.tokens) w.value(token);
  w.end_array().member("temperature", temperature).member("avg_logprob", segment.avg_logprob);
  w.member("compression_ratio", compression_ratio(segment.text));
  w.member("no_speech_prob", segment.no_speech_prob).end_object();
}

std::string verbose_json(const Transcription& made, bool translated, double temperature) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("task", translated ? "translate" : "transcribe");
  const std::string_view code = translated || made.language.empty() ? "en" : made.language;
  w.member("language", speech::language_name(code)).member("duration", made.duration);
  w.member("text", made.text).key("segments").begin_array();
  for (const TranscriptSegment& segment : made.segments) write_segment(w, segment, temperature);
  w.end_array();
  write_usage(w, made);
  w.end_object();
  return out;
}

// Blocks of SubRip, or of WebVTT, which has no numbers.
std::string subtitles(const Transcription& made, bool vtt) {
  std::string out = vtt ? "WEBVTT\n\n" : "";
  const char point = vtt ? '.' : ',';
  for (size_t i = 0; i < made.segments.size(); ++i) {
    const TranscriptSegment& segment = made.segments[i];
    if (!vtt) out += fmt::format("{}\n", i + 1);
    std::string text(trimmed(segment.text));
    // An arrow would begin a block of its own. Of "--->" one is left, which begins before this one.
    for (size_t at = text.find("-->"); at != std::string::npos;
         at = text.find("-->", at - std::min<size_t>(at, 1)))
      text.replace(at, 3, "->");
    out += fmt::format("{} --> {}\n{}\n\n", clock_time(segment.start, point),
                       clock_time(segment.end, point), text);
  }
  return out;
}

net::HttpResponse typed_text(std::string type, std::string body) {
  net::HttpResponse response;
  response.headers = {{"Content-Type", std::move(type)}};
  response.body = std::move(body);
  return response;
}

}  // namespace

std::string clock_time(double seconds, char point) {
  const auto ms = static_cast<int64_t>(std::llround(std::max(0.0, seconds) * 1000));
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", ms / 3'600'000, ms / 60'000 % 60, ms / 1000 % 60,
                     point, ms % 1000);
}

double compression_ratio(std::string_view text) {
  if (text.empty()) return 0;
  uLongf size = compressBound(static_cast<uLong>(text.size()));
  std::string packed(size, '\0');
  const int problem =
      compress(reinterpret_cast<Bytef*>(packed.data()), &size,
               reinterpret_cast<const Bytef*>(text.data()), static_cast<uLong>(text.size()));
  if (problem != Z_OK) return 1;
  return static_cast<double>(text.size()) / static_cast<double>(size);
}

net::HttpResponse transcript_response(const Transcription& made, TranscriptFormat format,
                                      bool translated, double temperature) {
  switch (format) {
    case TranscriptFormat::kText:
      return typed_text("text/plain; charset=utf-8", made.text + "\n");
    case TranscriptFormat::kSrt:
      return typed_text("text/plain; charset=utf-8", subtitles(made, false));
    case TranscriptFormat::kVtt:
      return typed_text("text/vtt; charset=utf-8", subtitles(made, true));
    case TranscriptFormat::kVerboseJson:
      return net::HttpResponse::json(200, verbose_json(made, translated, temperature));
    case TranscriptFormat::kJson:
      break;
  }
  return net::HttpResponse::json(200, short_json(made));
}

std::string delta_event(std::string_view delta) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("type", "transcript.text.delta").member("delta", delta).end_object();
  return out;
}

std::string done_event(const Transcription& made) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("type", "transcript.text.done").member("text", made.text);
  w.key("usage").begin_object().member("type", "tokens");
  w.member("input_tokens", made.num_prompt_tokens).member("output_tokens", made.num_tokens);
  w.member("total_tokens", made.num_prompt_tokens + made.num_tokens).end_object().end_object();
  return out;
}

}  // namespace espalier::server
