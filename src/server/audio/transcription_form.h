// The form of a request to /v1/audio/transcriptions or /v1/audio/translations. Internal to the
// room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "speech/transcriber.h"

namespace espalier::server {

enum class TranscriptFormat : uint8_t { kJson, kText, kSrt, kVerboseJson, kVtt };

struct TranscriptionForm {
  std::string_view file;         // of the body that was parsed
  TranscriptionRequest request;  // without samples
  TranscriptFormat format = TranscriptFormat::kJson;
  bool stream = false;
};

// kInvalidArgument names the field that is wrong; kUnimplemented one that is known and not
// supported. translate: a translation's form has no language and no stream.
Result<TranscriptionForm> parse_transcription_form(std::string_view content_type,
                                                   std::string_view body, bool translate);

// The JSON Schemas of the forms.
std::string transcription_schema();
std::string translation_schema();

}  // namespace espalier::server
