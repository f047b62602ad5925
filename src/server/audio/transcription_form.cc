#include "server/audio/transcription_form.h"

#include <charconv>

#include "net/multipart.h"
#include "server/json_writer.h"

namespace espalier::server {
namespace {

struct NamedFormat {
  std::string_view name;
  TranscriptFormat format;
};
constexpr NamedFormat kFormats[] = {{"json", TranscriptFormat::kJson},
                                    {"text", TranscriptFormat::kText},
                                    {"srt", TranscriptFormat::kSrt},
                                    {"verbose_json", TranscriptFormat::kVerboseJson},
                                    {"vtt", TranscriptFormat::kVtt}};

Status read_file(const net::FormPart& part, TranscriptionForm& form) {
  form.file = part.content;
  return {};
}

Status ignore_part(const net::FormPart&, TranscriptionForm&) { return {}; }

Status read_language(const net::FormPart& part, TranscriptionForm& form) {
  form.request.language = part.content;
  return {};
}

Status read_prompt(const net::FormPart& part, TranscriptionForm& form) {
  if (std::ssize(part.content) > TranscriberInfo::kPromptBytesMax)
    return invalid_argument("prompt has {} bytes, but may have {}: send its last sentences",
                            part.content.size(), TranscriberInfo::kPromptBytesMax);
  form.request.prompt = part.content;
  return {};
}

Status read_format(const net::FormPart& part, TranscriptionForm& form) {
  for (const NamedFormat& each : kFormats) {
    if (each.name != part.content) continue;
    form.format = each.format;
    return {};
  }
  return invalid_argument(
      "response_format is '{}', but must be json, text, srt, verbose_json or vtt", part.content);
}

Status read_temperature(const net::FormPart& part, TranscriptionForm& form) {
  const char* const end = part.content.data() + part.content.size();
  const auto [read, problem] = std::from_chars(part.content.data(), end, form.request.temperature);
  if (problem == std::errc() && read == end && form.request.temperature >= 0 &&
      form.request.temperature <= 1)
    return {};
  return invalid_argument("temperature is '{}', but must be a number from 0 to 1", part.content);
}

Status read_granularity(const net::FormPart& part, TranscriptionForm& form) {
  if (part.content == "word")
    return error(StatusCode::kUnimplemented,
                 "timestamp_granularities 'word' is not supported: send 'segment'");
  if (part.content != "segment")
    return invalid_argument("timestamp_granularities is '{}', but must be segment", part.content);
  form.request.timestamps = true;
  return {};
}

Status read_stream(const net::FormPart& part, TranscriptionForm& form) {
  if (part.content == "true" || part.content == "True" || part.content == "1") {
    form.stream = true;
  } else if (part.content != "false" && part.content != "False" && part.content != "0") {
    return invalid_argument("stream is '{}', but must be true or false", part.content);
  }
  return {};
}

Status refuse_include(const net::FormPart&, TranscriptionForm&) {
  return error(StatusCode::kUnimplemented,
               "include is not supported: verbose_json has the mean log-probability of segments");
}

struct FormField {
  std::string_view name, type, help;
  Status (*read)(const net::FormPart& part, TranscriptionForm& form);
  bool in_translations = true;
};

constexpr FormField kFields[] = {
    {"file", "string", "the audio: WAV, FLAC, Ogg or MP3", read_file},
    {"model", "string", "echoed nowhere; one model is served", ignore_part},
    {"language", "string", "of the speech, a code of ISO 639-1; detected where it is left out",
     read_language, false},
    {"prompt", "string", "text that goes before, for its style and spelling", read_prompt},
    {"response_format", "string", "json, text, srt, verbose_json or vtt", read_format},
    {"temperature", "number", "0: the most likely tokens; up to 1", read_temperature},
    {"timestamp_granularities[]", "string", "segment", read_granularity, false},
    {"timestamp_granularities", "string", "the same", read_granularity, false},
    {"stream", "boolean", "events transcript.text.delta and transcript.text.done", read_stream,
     false},
    {"include[]", "string", "not supported", refuse_include, false},
    {"chunking_strategy", "string", "ignored: windows are the model's", ignore_part, false},
    {"user", "string", "ignored", ignore_part},
};

Status read_part(const net::FormPart& part, bool translate, TranscriptionForm& form) {
  for (const FormField& field : kFields) {
    if (field.name != part.name || (translate && !field.in_translations)) continue;
    return field.read(part, form);
  }
  return invalid_argument("the form has a field '{}', which is not known here: leave it out",
                          part.name.substr(0, 64));
}

std::string form_schema(bool translate) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("type", "object").key("required").begin_array().value("file").end_array();
  w.key("properties").begin_object();
  for (const FormField& field : kFields) {
    if (translate && !field.in_translations) continue;
    w.key(field.name).begin_object().member("type", field.type);
    if (field.name == "file") w.member("format", "binary");
    w.member("description", field.help).end_object();
  }
  w.end_object().end_object();
  return out;
}

}  // namespace

Result<TranscriptionForm> parse_transcription_form(std::string_view content_type,
                                                   std::string_view body, bool translate) {
  ESP_ASSIGN_OR_RETURN(const auto parts, net::parse_form_data(content_type, body));
  TranscriptionForm form;
  form.request.translate = translate;
  bool has_file = false;
  for (const net::FormPart& part : parts) {
    ESP_RETURN_IF_ERROR(read_part(part, translate, form));
    has_file |= part.name == "file";
  }
  if (!has_file) return fail(invalid_argument("file is missing: a part of the form, with audio"));
  if (form.stream && form.format != TranscriptFormat::kJson &&
      form.format != TranscriptFormat::kText) {
    return fail(invalid_argument("stream goes with response_format json or text: leave one out"));
  }
  form.request.timestamps |=
      form.format != TranscriptFormat::kJson && form.format != TranscriptFormat::kText;
  return form;
}

std::string transcription_schema() { return form_schema(false); }
std::string translation_schema() { return form_schema(true); }

}  // namespace espalier::server
