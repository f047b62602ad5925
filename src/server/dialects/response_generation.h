// The answer of one POST /v1/responses: a list of items, whole or as a stream of events, for its
// client or for the background run that carries it. Internal to the room.
#pragma once

#include <memory>
#include <string>

#include "server/dialects/background_responses.h"
#include "server/dialects/chat_dialect.h"
#include "server/dialects/response_items.h"
#include "server/dialects/response_request.h"

namespace espalier::server {

class ResponseGeneration final : public ChatDialectGeneration, public BackgroundSource {
 public:
  // id: of the response. run: null where its client waits for the answer.
  ResponseGeneration(ContextPtr context, net::ResponsePtr response, GenerationItem item,
                     ResponseRequest&& request, const AnswerFormat& format, std::string id,
                     std::shared_ptr<BackgroundRun> run);

  std::string snapshot() const override { return response_json(samples()[0]); }
  void store_cancelled() override;

 protected:
  Dialect dialect() const override { return Dialect::kResponses; }
  Status in_client_names(const Status& status) const override;
  void append_events(std::string& out, const Sample& sample) override;
  void append_end(std::string&) override {}  // the last event has ended it
  void append_failure(std::string& out, const Status& status) override;
  void on_failed(const Status& status) override;
  std::string whole_body() override;

 private:
  // Takes in what is new of the sample; ended: nothing more comes.
  void consume(const Sample& sample, bool ended, std::string* out);
  void consume_tokens(const Sample& sample, bool ended, std::string* out);
  std::string_view status_name(const Sample& sample) const;
  void append_response_event(std::string& out, std::string_view type, const Sample& sample);
  std::string response_json(const Sample& sample) const;
  void write_outcome(JsonWriter& w, const Sample& sample) const;
  void write_request(JsonWriter& w) const;
  void write_usage(JsonWriter& w, const Sample& sample) const;
  void store(const Sample& sample);
  void extend_conversation();  // by the input and the answer

  const ResponseRequest request_;
  const std::string id_;
  const std::shared_ptr<BackgroundRun> run_;
  const int64_t created_;  // Unix seconds
  ResponseItems items_;
  // With log-probabilities: the tokens whose text is known, and the end of that text in bytes.
  size_t tokens_read_ = 0, text_read_ = 0;
  Status failure_;  // of a background run
  bool cancelled_ = false;
};

}  // namespace espalier::server
