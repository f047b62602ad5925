// /start_expert_distribution_record, /stop_... and /dump_...: which experts got how many tokens.
// SGLang writes a dump to a file; here the answer is the dump.
#include <utility>

#include "server/errors.h"
#include "server/expert_record.h"
#include "server/json_writer.h"
#include "server/observations.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

void ExpertRecord::start(ExpertTotals now) {
  const std::lock_guard lock(mutex_);
  is_recording_ = has_record_ = true;
  begin_ = std::move(now);
}

Status ExpertRecord::stop(const ExpertTotals& now) {
  const std::lock_guard lock(mutex_);
  if (!is_recording_)
    return error(StatusCode::kFailedPrecondition,
                 "no record is under way: call /start_expert_distribution_record before");
  is_recording_ = false;
  recorded_ = difference(now, begin_);
  return Status();
}

Result<ExpertRecord::Dump> ExpertRecord::dump(const ExpertTotals& now) {
  const std::lock_guard lock(mutex_);
  if (!has_record_)
    return fail(error(StatusCode::kFailedPrecondition,
                      "nothing was recorded: call /start_expert_distribution_record before"));
  if (!is_recording_) {
    has_record_ = false;
    return Dump{.totals = std::exchange(recorded_, {})};
  }
  Dump out{.totals = difference(now, begin_), .is_recording = true};
  begin_ = now;
  return out;
}

namespace {

// What the engine has counted; without, the response says why.
std::optional<ExpertTotals> counted(const ContextPtr& context, const ResponsePtr& response) {
  if (context->engine.config().compute.expert_distribution_recorder_mode == "none") {
    response->send(http_error(501,
                              "this server does not count the tokens of experts: start it with "
                              "--expert-distribution-recorder-mode stat"));
    return std::nullopt;
  }
  ExpertTotals totals = context->engine.stats().experts;
  if (!totals.tokens.empty()) return totals;
  response->send(malformed_response(
      error(StatusCode::kFailedPrecondition, "the model has no experts whose tokens are counted")));
  return std::nullopt;
}

void handle_start(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  auto totals = counted(context, response);
  if (!totals) return;
  context->observed->experts.start(*std::move(totals));
  response->send(HttpResponse::text(200, "Start recording expert distribution.\n"));
}

void handle_stop(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  const auto totals = counted(context, response);
  if (!totals) return;
  if (const Status status = context->observed->experts.stop(*totals); !status.ok())
    return response->send(malformed_response(status));
  response->send(HttpResponse::text(200, "Stop recording expert distribution.\n"));
}

std::string dump_json(const ExpertRecord::Dump& dump, int32_t num_groups) {
  const ExpertBalance balance = balance_of(dump.totals);
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("is_recording", dump.is_recording).member("ep_size", num_groups);
  w.member("busiest_expert_over_mean", balance.over_experts)
      .member("busiest_rank_over_mean", balance.over_groups)
      .member("moved_experts", dump.totals.num_moved);
  w.key("logical_count").begin_array();
  for (const std::vector<int64_t>& layer : dump.totals.tokens) {
    w.begin_array();
    for (const int64_t count : layer) w.value(count);
    w.end_array();
  }
  w.end_array().end_object();
  return out;
}

void handle_dump(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  const auto totals = counted(context, response);
  if (!totals) return;
  const auto dump = context->observed->experts.dump(*totals);
  if (!dump) return response->send(malformed_response(dump.error()));
  response->send(
      HttpResponse::json(200, dump_json(*dump, context->engine.config().compute.ep_size)));
}

}  // namespace

const std::vector<Route>& expert_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET", "POST"},
       "/start_expert_distribution_record",
       kControl,
       "Record the tokens of each expert",
       handle_start},
      {{"GET", "POST"},
       "/stop_expert_distribution_record",
       kControl,
       "End the record",
       handle_stop},
      {{"GET", "POST"},
       "/dump_expert_distribution_record",
       kControl,
       "What was recorded, by layer and expert",
       handle_dump},
  };
  return table;
}

}  // namespace espalier::server
