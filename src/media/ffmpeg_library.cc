#include "media/ffmpeg_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <optional>

namespace espalier::media {
namespace {

// Symbols of one library; `complete` stays true where all are there.
class Symbols {
 public:
  Symbols(const char* name, int version)
      : library_(dlopen(fmt::format("{}.so.{}", name, version).c_str(), RTLD_NOW | RTLD_LOCAL)) {}

  template <typename Function>
  Symbols& find(const char* name, Function& out) {
    if (library_ != nullptr) out = reinterpret_cast<Function>(dlsym(library_, name));
    complete_ &= out != nullptr;
    return *this;
  }
  bool complete() const { return complete_; }

 private:
  void* const library_;  // stays loaded
  bool complete_ = true;
};

bool load_util(Ffmpeg& to) {
  return Symbols("libavutil", LIBAVUTIL_VERSION_MAJOR)
      .find("av_malloc", to.av_malloc)
      .find("av_freep", to.av_freep)
      .find("av_dict_set", to.av_dict_set)
      .find("av_dict_free", to.av_dict_free)
      .find("av_frame_alloc", to.av_frame_alloc)
      .find("av_frame_free", to.av_frame_free)
      .find("av_frame_unref", to.av_frame_unref)
      .find("av_frame_get_buffer", to.av_frame_get_buffer)
      .find("av_log_set_level", to.av_log_set_level)
      .find("av_strerror", to.av_strerror)
      .complete();
}

bool load_codec(Ffmpeg& to) {
  return Symbols("libavcodec", LIBAVCODEC_VERSION_MAJOR)
      .find("av_packet_alloc", to.av_packet_alloc)
      .find("av_packet_free", to.av_packet_free)
      .find("av_packet_unref", to.av_packet_unref)
      .find("avcodec_find_decoder", to.avcodec_find_decoder)
      .find("avcodec_alloc_context3", to.avcodec_alloc_context3)
      .find("avcodec_free_context", to.avcodec_free_context)
      .find("avcodec_parameters_to_context", to.avcodec_parameters_to_context)
      .find("avcodec_open2", to.avcodec_open2)
      .find("avcodec_send_packet", to.avcodec_send_packet)
      .find("avcodec_receive_frame", to.avcodec_receive_frame)
      .complete();
}

bool load_format(Ffmpeg& to) {
  return Symbols("libavformat", LIBAVFORMAT_VERSION_MAJOR)
      .find("avio_alloc_context", to.avio_alloc_context)
      .find("avio_context_free", to.avio_context_free)
      .find("avformat_alloc_context", to.avformat_alloc_context)
      .find("avformat_open_input", to.avformat_open_input)
      .find("avformat_close_input", to.avformat_close_input)
      .find("avformat_find_stream_info", to.avformat_find_stream_info)
      .find("av_find_best_stream", to.av_find_best_stream)
      .find("av_read_frame", to.av_read_frame)
      .complete();
}

bool load_scale(Ffmpeg& to) {
  return Symbols("libswscale", LIBSWSCALE_VERSION_MAJOR)
      .find("sws_getContext", to.sws_getContext)
      .find("sws_freeContext", to.sws_freeContext)
      .find("sws_scale", to.sws_scale)
      .find("sws_getCoefficients", to.sws_getCoefficients)
      .find("sws_setColorspaceDetails", to.sws_setColorspaceDetails)
      .complete();
}

}  // namespace

std::string Ffmpeg::reason(int code) const {
  std::array<char, 128> text{};
  av_strerror(code, text.data(), text.size());
  return text.data();
}

Result<const Ffmpeg*> ffmpeg() {
  static const std::optional<Ffmpeg> loaded = []() -> std::optional<Ffmpeg> {
    Ffmpeg found;
    if (!load_util(found) || !load_codec(found) || !load_format(found) || !load_scale(found))
      return std::nullopt;
    found.av_log_set_level(AV_LOG_QUIET);  // what is wrong with a client's file is its answer's
    return found;
  }();
  if (loaded) return &*loaded;
  return fail(error(StatusCode::kUnimplemented,
                    "files of videos are read by FFmpeg's libraries, which are not installed here: "
                    "install the packages libavformat{}, libavcodec{} and libswscale{}, or send "
                    "the video as a list of its frames",
                    LIBAVFORMAT_VERSION_MAJOR, LIBAVCODEC_VERSION_MAJOR, LIBSWSCALE_VERSION_MAJOR));
}

}  // namespace espalier::media
