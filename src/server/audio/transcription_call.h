// A request for a transcription, from its form to its answer. Internal to the room.
//
// Threads: the file is decoded on a thread for sounds, the transcriber's events are posted to the
// connection's I/O thread, where the answer is written. The object lives as long as the transcriber
// holds its sink.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "media/audio.h"
#include "net/http.h"
#include "server/audio/transcription_form.h"
#include "server/context.h"
#include "speech/transcriber.h"
#include "tenants/tenants.h"

namespace espalier::server {

class TranscriptionCall : public std::enable_shared_from_this<TranscriptionCall> {
 public:
  // REQUIRES: the engine has a transcriber.
  TranscriptionCall(ContextPtr context, net::ResponsePtr response, bool translate)
      : context_(std::move(context)), response_(std::move(response)), translate_(translate) {}

  // Reads the form and its file, and submits; answers where that fails. On a thread that may take
  // seconds.
  void begin(net::HttpRequest&& request);

 private:
  struct Refusal {
    int status = 0;  // 0: as the failure's code says
    Status why;
  };

  std::optional<Refusal> read_form(const net::HttpRequest& request);
  std::optional<Refusal> read_header(AudioHeader& header) const;
  std::optional<Refusal> read_sound(const AudioHeader& header, MemoryCharge& charge);
  bool admit(const net::HttpRequest& request, double seconds);
  void submit();
  void on_event(TranscriptEvent&& event);
  void finish(const Transcription& made);
  void refuse(const Refusal& refusal);

  const ContextPtr context_;
  const net::ResponsePtr response_;
  const bool translate_;
  TranscriptionForm form_;
  MemoryCharge charge_;                          // of samples and spectrogram, until the end
  std::optional<TokenReservation> reservation_;  // of the tenant's tokens
  bool streaming_ = false;                       // the answer's head is out; the I/O thread's
};

}  // namespace espalier::server
