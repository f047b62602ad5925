// A transcription as the text of an answer, in each format of OpenAI's. Pure functions. Internal to
// the room.
#pragma once

#include <string>
#include <string_view>

#include "net/http.h"
#include "server/audio/transcription_form.h"
#include "speech/transcriber.h"

namespace espalier::server {

// The whole answer. translated: its task, which verbose_json names.
net::HttpResponse transcript_response(const Transcription& made, TranscriptFormat format,
                                      bool translated, double temperature);

// The payloads of a stream's events.
std::string delta_event(std::string_view delta);
std::string done_event(const Transcription& made);

// "00:01:02,500": hours, minutes, seconds and thousandths.
std::string clock_time(double seconds, char point);

// Bytes of the text over bytes of what zlib makes of it: high where it repeats itself.
double compression_ratio(std::string_view text);

}  // namespace espalier::server
