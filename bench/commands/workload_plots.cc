#include "bench/commands/workload_plots.h"

#include <algorithm>
#include <boost/json.hpp>

#include "bench/workloads/plot.h"

namespace espalier::bench {
namespace {

namespace json = boost::json;
using workloads::Axes;
using workloads::Line;
using workloads::Series;

double number(const json::value& of, std::string_view name) {
  return of.at(name).to_number<double>();
}
std::string name_of(const json::value& of) { return std::string(of.at("name").as_string()); }
const json::array* list_of(const json::value& of, std::string_view name) {
  const json::value* found = of.as_object().if_contains(name);
  return found != nullptr && found->is_array() ? &found->get_array() : nullptr;
}

// The series of that name, made where it is new, with a value for every group before.
Series& series_of(std::vector<Series>& all, const std::string& name, size_t group) {
  auto it = std::ranges::find(all, name, &Series::name);
  if (it == all.end()) it = all.insert(all.end(), {name, {}});
  it->values.resize(group);
  return *it;
}

std::vector<Line> lines_of(const json::array& rows, std::string_view what, bool relative) {
  std::vector<Line> lines;
  for (const json::value& row : rows) {
    const json::array* shares = list_of(row, "match_shares");
    if (shares == nullptr || shares->empty()) continue;
    const double unit = relative ? number(shares->front(), what) : 1;
    Line line{name_of(row), {}};
    for (const json::value& at : *shares)
      line.points.emplace_back(100 * number(at, "hit_rate"), number(at, what) / unit);
    std::ranges::sort(line.points);
    lines.push_back(std::move(line));
  }
  return lines;
}

Status draw(const json::array& rows, const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::vector<Series> speed, hits, ablations;
  for (const json::value& row : rows) {
    const size_t group = names.size();
    names.push_back(name_of(row));
    const double off = number(row, "throughput_cache_off");
    series_of(speed, "cache on", group).values.push_back(number(row, "throughput") / off);
    series_of(speed, "cache off", group).values.push_back(1);
    series_of(hits, "room for all", group).values.push_back(100 * number(row, "hit_rate"));
    series_of(hits, "optimum", group).values.push_back(100 * number(row, "hit_rate_optimal"));
    if (const json::array* pools = list_of(row, "pools"))
      for (const json::value& pool : *pools)
        series_of(hits, fmt::format("pool of {:.0f} %", 100 * number(pool, "pool_share")), group)
            .values.push_back(100 * number(pool, "hit_rate"));
    if (const json::array* variants = list_of(row, "ablations"))
      for (const json::value& variant : *variants)
        series_of(ablations, name_of(variant), group)
            .values.push_back(number(variant, "throughput") /
                              number(variants->front(), "throughput"));
  }
  ESP_RETURN_IF_ERROR(workloads::write_plot(
      workloads::bar_chart({.title = "Throughput at full load with the prefix cache",
                            .y = "programs a second, cache off = 1"},
                           names, speed),
      folder, "workloads_throughput"));
  ESP_RETURN_IF_ERROR(workloads::write_plot(
      workloads::bar_chart({.title = "Hit rate, by the size of the pool (% of unique tokens)",
                            .y = "% of prompt tokens from the cache"},
                           names, hits),
      folder, "workloads_hit_rate"));
  if (!ablations.empty())
    ESP_RETURN_IF_ERROR(workloads::write_plot(
        workloads::bar_chart({.title = "Ablations, with a pool of half of the unique tokens",
                              .y = "programs a second, all on = 1"},
                             names, ablations),
        folder, "workloads_ablations"));
  struct Against {
    const char *what, *title, *y;
    bool relative;
  };
  for (const Against& a :
       {Against{"throughput", "Throughput against hit rate", "programs a second, no hits = 1",
                true},
        Against{"batch_size", "Batch size against hit rate", "entries of a step, mean", false},
        Against{"latency", "Latency of a program against hit rate", "seconds, no hits = 1",
                true}}) {
    const std::vector<Line> lines = lines_of(rows, a.what, a.relative);
    if (lines.empty()) continue;
    ESP_RETURN_IF_ERROR(workloads::write_plot(
        workloads::line_chart(
            {.title = a.title, .y = a.y, .x = "hit rate, % (part of each match disregarded)"},
            lines),
        folder, std::string("workloads_by_hit_rate_") + a.what));
  }
  return {};
}

}  // namespace

Status plot_workloads(const json::array& workloads, const std::filesystem::path& folder) {
  try {  // what at() and as_string() throw, for a file that somebody has edited
    return draw(workloads, folder);
  } catch (const std::exception& e) {
    return invalid_argument("these are no results of espalier_bench workloads: {}", e.what());
  }
}

}  // namespace espalier::bench
