// FFmpeg's libraries, of the version whose headers are there when this is compiled: they are loaded
// when the first video is read, so who sends none needs none of them. Internal to the room.
// Source of the interface: https://ffmpeg.org/doxygen/5.1/
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <string>

#include "base/status.h"

namespace espalier::media {

struct Ffmpeg {
  // libavutil
  decltype(&::av_malloc) av_malloc = nullptr;
  decltype(&::av_freep) av_freep = nullptr;
  decltype(&::av_dict_set) av_dict_set = nullptr;
  decltype(&::av_dict_free) av_dict_free = nullptr;
  decltype(&::av_frame_alloc) av_frame_alloc = nullptr;
  decltype(&::av_frame_free) av_frame_free = nullptr;
  decltype(&::av_frame_unref) av_frame_unref = nullptr;
  decltype(&::av_frame_get_buffer) av_frame_get_buffer = nullptr;
  decltype(&::av_log_set_level) av_log_set_level = nullptr;
  decltype(&::av_strerror) av_strerror = nullptr;
  // libavcodec
  decltype(&::av_packet_alloc) av_packet_alloc = nullptr;
  decltype(&::av_packet_free) av_packet_free = nullptr;
  decltype(&::av_packet_unref) av_packet_unref = nullptr;
  decltype(&::avcodec_find_decoder) avcodec_find_decoder = nullptr;
  decltype(&::avcodec_alloc_context3) avcodec_alloc_context3 = nullptr;
  decltype(&::avcodec_free_context) avcodec_free_context = nullptr;
  decltype(&::avcodec_parameters_to_context) avcodec_parameters_to_context = nullptr;
  decltype(&::avcodec_open2) avcodec_open2 = nullptr;
  decltype(&::avcodec_send_packet) avcodec_send_packet = nullptr;
  decltype(&::avcodec_receive_frame) avcodec_receive_frame = nullptr;
  // libavformat
  decltype(&::avio_alloc_context) avio_alloc_context = nullptr;
  decltype(&::avio_context_free) avio_context_free = nullptr;
  decltype(&::avformat_alloc_context) avformat_alloc_context = nullptr;
  decltype(&::avformat_open_input) avformat_open_input = nullptr;
  decltype(&::avformat_close_input) avformat_close_input = nullptr;
  decltype(&::avformat_find_stream_info) avformat_find_stream_info = nullptr;
  decltype(&::av_find_best_stream) av_find_best_stream = nullptr;
  decltype(&::av_read_frame) av_read_frame = nullptr;
  // libswscale
  decltype(&::sws_getContext) sws_getContext = nullptr;
  decltype(&::sws_freeContext) sws_freeContext = nullptr;
  decltype(&::sws_scale) sws_scale = nullptr;
  decltype(&::sws_getCoefficients) sws_getCoefficients = nullptr;
  decltype(&::sws_setColorspaceDetails) sws_setColorspaceDetails = nullptr;

  // What a negative result means.
  std::string reason(int code) const;
};

// Thread-safe. kUnimplemented, with the names of the packages, where they are not installed.
Result<const Ffmpeg*> ffmpeg();

}  // namespace espalier::media
