// /start_profile and /stop_profile: a trace of the engine's steps, for Perfetto.
#include <boost/json/value.hpp>

#include "server/errors.h"
#include "server/json_fields.h"
#include "server/observations.h"
#include "server/routes.h"
#include "server/tracing/profiler.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

struct ProfileBody {
  std::string output_dir, profile_id, profile_prefix;
  std::optional<int32_t> start_step, num_steps;
  std::vector<std::string> activities;
};

// Stacks and shapes are PyTorch's: there is nothing of the kind to record.
const Fields<ProfileBody>& profile_fields() {
  static const Fields<ProfileBody> fields = {
      field<ProfileBody>("output_dir", "the folder of the trace, inside --profile-dir",
                         &ProfileBody::output_dir),
      field<ProfileBody>("start_step", "the first step of the profile; without: the next",
                         &ProfileBody::start_step),
      field<ProfileBody>("num_steps", "how many steps it has; without: until /stop_profile",
                         &ProfileBody::num_steps),
      field<ProfileBody>("activities", "CPU and GPU, which are recorded in any case",
                         &ProfileBody::activities),
      field<ProfileBody>("profile_id", "part of the file's name; without: the time",
                         &ProfileBody::profile_id),
      field<ProfileBody>("profile_prefix", "what the file's name begins with",
                         &ProfileBody::profile_prefix),
      refused<ProfileBody>("profile_by_stage"),
      refused<ProfileBody>("profile_stages"),
      refused<ProfileBody>("merge_profiles"),
      ignored<ProfileBody>("with_stack"),
      ignored<ProfileBody>("record_shapes"),
      ignored<ProfileBody>("req_type"),
  };
  return fields;
}

std::string profile_schema() { return schema_of(profile_fields()); }

Result<ProfileBody> read_profile_body(const std::string& text) {
  ProfileBody body;
  if (text.empty()) return body;
  ESP_ASSIGN_OR_RETURN(const auto value, parse_json(text));
  if (!value.is_null()) ESP_RETURN_IF_ERROR(read_fields(profile_fields(), value, "", body));
  for (const std::string& activity : body.activities)
    if (activity != "CPU" && activity != "GPU")
      return fail(invalid_argument(
          "activities has \"{}\", but a profile records CPU and GPU: leave it out", activity));
  if (body.start_step.value_or(0) < 0)
    return fail(
        invalid_argument("start_step is {}, but steps are counted from 1", *body.start_step));
  return body;
}

std::string unix_microseconds() {
  return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count());
}

void handle_start(const ContextPtr& context, HttpRequest&& request, ResponsePtr response) {
  const std::string& root = context->config.telemetry.profile_dir;
  if (root.empty())
    return response->send(http_error(
        501, "this server writes no profiles: start it with --profile-dir, their folder"));
  auto body = read_profile_body(request.body);
  if (!body) return response->send(malformed_response(body.error()));
  const auto path =
      new_trace_path(root, body->output_dir, body->profile_prefix,
                     body->profile_id.empty() ? unix_microseconds() : body->profile_id);
  if (!path) return response->send(malformed_response(path.error()));
  ProfileOptions options;
  options.start_step = static_cast<uint64_t>(body->start_step.value_or(0));
  options.num_steps = body->num_steps.value_or(ProfileOptions::kStepsMax);
  context->observed->profiler.start(
      context, options, *path, [response](const Result<std::filesystem::path>& started) {
        response->send(started ? HttpResponse::text(200, "Start profiling.\n")
                               : malformed_response(started.error()));
      });
}

void handle_stop(const ContextPtr& context, HttpRequest&&, ResponsePtr response) {
  context->observed->profiler.stop(
      context, [response](const Result<std::filesystem::path>& stopped) {
        if (stopped)
          return response->send(HttpResponse::text(
              200, fmt::format("Stop profiling. The trace is {}\n", stopped->string())));
        const bool is_wrong = stopped.error().code() == StatusCode::kFailedPrecondition;
        response->send(is_wrong ? malformed_response(stopped.error())
                                : http_error(500, stopped.error().message()));
      });
}

}  // namespace

const std::vector<Route>& profile_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"GET", "POST"},
       "/start_profile",
       kControl,
       "Record a trace of the engine's steps",
       handle_start,
       "StartProfile",
       profile_schema},
      {{"GET", "POST"}, "/stop_profile", kControl, "End the record and write it", handle_stop},
  };
  return table;
}

}  // namespace espalier::server
