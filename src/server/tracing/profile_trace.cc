#include "server/tracing/profile_trace.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/json_writer.h"

namespace espalier::server {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;
constexpr int kSchedulerTrack = 1, kExecutorTrack = 2;

class TraceWriter {
 public:
  TraceWriter(const StepProfile& profile, const WriteText& write)
      : profile_(profile), write_(write) {}

  Status write(std::string_view model) {
    w_.begin_object().member("displayTimeUnit", "ms").key("otherData").begin_object();
    w_.member("model", model).member("steps", profile_.steps.size());
    w_.member("dropped", profile_.num_dropped).end_object().key("traceEvents").begin_array();
    name("process_name", 0, "espalier");
    name("thread_name", kSchedulerTrack, "scheduler");
    name("thread_name", kExecutorTrack, "executor");
    ESP_RETURN_IF_ERROR(write_turns());
    ESP_RETURN_IF_ERROR(write_steps());
    for (size_t i = 0; i < profile_.samples.size(); ++i) {
      write_sample(profile_.samples[i], i);
      ESP_RETURN_IF_ERROR(flush(kPartBytes));
    }
    w_.end_array().end_object();
    return flush(1);
  }

 private:
  // A turn comes before its phases: of slices that begin together the first holds the others.
  Status write_turns() {
    size_t next = 0;
    const auto& phases = profile_.phases;
    for (const StepProfile::Turn& turn : profile_.turns) {
      slice("turn", kSchedulerTrack, turn.begin, turn.end);
      w_.end_object();
      for (; next < phases.size() && phases[next].begin < turn.end; ++next) {
        slice(loop_phase_name(phases[next].phase), kSchedulerTrack, phases[next].begin,
              phases[next].end);
        w_.end_object();
      }
      ESP_RETURN_IF_ERROR(flush(kPartBytes));
    }
    return {};
  }

  Status write_steps() {
    for (const StepProfile::Step& step : profile_.steps) {
      slice("step", kExecutorTrack, step.begin, step.end);
      w_.key("args").begin_object().member("step", step.step).member("entries", step.entries);
      w_.member("tokens", step.tokens);
      if (step.draft_tokens > 0)
        w_.member("draft_tokens", step.draft_tokens)
            .member("accepted_draft_tokens", step.accepted_draft_tokens);
      if (step.graph_use != GraphUse::kNone)
        w_.member("graph", step.graph_use == GraphUse::kReplayed ? "replayed" : "recorded");
      w_.key("launched_us");
      microseconds(step.launched - profile_.begin);
      if (step.is_estimated) w_.member("estimated", true);
      w_.end_object().end_object();
      ESP_RETURN_IF_ERROR(flush(kPartBytes));
    }
    return {};
  }

  // Slices of one id nest; samples overlap, so each has an id of its own.
  void write_sample(const StepProfile::Sample& sample, size_t id) {
    const RequestStats& s = sample.stats;
    const TimePoint end = sample.has_ended && s.finished != TimePoint{} ? s.finished : profile_.end;
    const auto or_end = [&](TimePoint at) { return at == TimePoint{} ? end : at; };
    const TimePoint scheduled = or_end(s.scheduled), first = or_end(s.first_token);
    begin_async("request", id, s.arrived);
    w_.key("args").begin_object().member("rid", sample.rid).member("index", sample.index);
    w_.member("prompt_tokens", s.prompt_tokens).member("cached_tokens", s.cached_tokens);
    w_.member("completion_tokens", s.completion_tokens).member("ended", sample.has_ended);
    w_.end_object().end_object();
    async("queue", id, s.arrived, scheduled);
    if (s.scheduled != TimePoint{}) async("prefill", id, scheduled, first);
    if (s.first_token != TimePoint{}) async("decode", id, first, end);
    end_async("request", id, end);
  }

  void async(std::string_view what, size_t id, TimePoint begin, TimePoint end) {
    begin_async(what, id, begin);
    w_.end_object();
    end_async(what, id, end);
  }
  void begin_async(std::string_view what, size_t id, TimePoint at) {
    async_edge(what, id, at, "b");
  }
  void end_async(std::string_view what, size_t id, TimePoint at) {
    async_edge(what, id, at, "e");
    w_.end_object();
  }
  void async_edge(std::string_view what, size_t id, TimePoint at, std::string_view edge) {
    w_.begin_object().member("name", what).member("cat", "request").member("ph", edge);
    w_.member("id", std::to_string(id)).member("pid", 1).member("tid", 3).key("ts");
    microseconds(std::clamp(at, profile_.begin, profile_.end) - profile_.begin);
  }

  void slice(std::string_view what, int track, TimePoint begin, TimePoint end) {
    w_.begin_object().member("name", what).member("ph", "X").member("pid", 1).member("tid", track);
    w_.key("ts");
    microseconds(begin - profile_.begin);
    w_.key("dur");
    microseconds(end - begin);
  }

  void name(std::string_view what, int track, std::string_view text) {
    w_.begin_object().member("name", what).member("ph", "M").member("pid", 1).member("tid", track);
    w_.key("args").begin_object().member("name", text).end_object().end_object();
  }

  void microseconds(Duration d) {
    w_.raw(fmt::format("{}.{:03}", d.count() / 1000, d.count() % 1000));
  }

  Status flush(size_t bytes_min) {
    if (out_.size() < bytes_min) return {};
    ESP_RETURN_IF_ERROR(write_(out_));
    out_.clear();
    return {};
  }

  const StepProfile& profile_;
  const WriteText& write_;
  std::string out_;
  JsonWriter w_{out_};
};

}  // namespace

Status write_trace(const StepProfile& profile, std::string_view model, const WriteText& write) {
  return TraceWriter(profile, write).write(model);
}

}  // namespace espalier::server
