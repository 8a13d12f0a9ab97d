#include "formats/binpack.h"

#include <algorithm>

#include "formats/movetext.h"
#include "pipeline/kernels.h"

namespace nnue::data {

namespace {

constexpr std::uint32_t kMaxPayload = 100u << 20;
constexpr std::size_t kFlushPayload = 1u << 20;
constexpr std::size_t kHeader = kBinpackHeader, kStem = kBinpackStem;
constexpr unsigned kMaxChainPlies = 65535;
constexpr std::size_t kMaxPlyBytes = 8;  // of movetext: at most 4 + 5 + 20 bits, and BitWriter's slack

}  // namespace

void RecordBuffer::reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    capacity = std::max(capacity, capacity_ + capacity_ / 2);
    auto data = std::make_unique_for_overwrite<Record[]>(capacity);
    std::copy_n(data_.get(), size_, data.get());
    data_ = std::move(data);
    capacity_ = capacity;
}

std::uint32_t binpack_payload_size(std::span<const std::uint8_t> header) {
    if (header.size() < kHeader) {
        throw FormatError("has a header of " + std::to_string(header.size()) +
                          " bytes, expected 8: the file is truncated");
    }
    if (std::memcmp(header.data(), "BINP", 4) != 0) throw FormatError("does not start with 'BINP'");
    const std::uint32_t size = header[4] | header[5] << 8 | header[6] << 16 | std::uint32_t{header[7]} << 24;
    if (size > kMaxPayload) {
        throw FormatError("claims a payload of " + std::to_string(size) + " bytes, more than 100 MiB");
    }
    return size;
}

BinpackFile::BinpackFile(InputFile file, OnBad on_bad, const std::function<void()>& poll) : file_(std::move(file)) {
    constexpr std::size_t kBetweenPolls = 16;  // chunks; on a slow disk each is a seek of ten milliseconds
    for (std::uint64_t at = 0; at < file_.size();) {
        if (poll && chunks_.size() % kBetweenPolls == kBetweenPolls - 1) poll();
        const std::string name = "chunk " + std::to_string(chunks_.size());
        const std::uint64_t left = file_.size() - at;
        std::uint8_t header[kHeader];
        const std::span<std::uint8_t> present(header, std::min<std::uint64_t>(left, kHeader));
        file_.read(at, present);
        std::string torn;
        std::uint32_t size = 0;
        try {
            size = binpack_payload_size(present);
        } catch (const FormatError& e) {
            const FormatError error = file_.error(at, name + " " + e.what());
            if (left >= kHeader || on_bad == OnBad::kError) throw error;
            torn = error.what();
        }
        if (torn.empty() && size > left - kHeader) {
            const FormatError error = file_.error(at, name + " claims a payload of " + std::to_string(size) +
                                                          " bytes, but the file ends after " +
                                                          std::to_string(left - kHeader) + " of them: it is truncated");
            if (on_bad == OnBad::kError) throw error;
            torn = error.what();
        }
        if (!torn.empty()) {
            torn_end_ = std::move(torn);
            return;
        }
        chunks_.push_back({at + kHeader, size});
        at += kHeader + size;
    }
}

std::size_t BinpackFile::decode(std::size_t chunk, std::vector<std::uint8_t>& payload, RecordBuffer& records,
                                ChainCounts* counts, std::vector<std::uint8_t>* flags) const {
    const auto [offset, size] = chunks_.at(chunk);
    payload.resize(size + kPayloadPadding);
    file_.read(offset, {payload.data(), size});
    std::fill_n(payload.data() + size, kPayloadPadding, std::uint8_t{0});
    records.resize(0);
    std::size_t at = 0, unscored = 0;
    while (size - at >= kStem) {
        // Room for the next chain at least; usually for many, at the density seen so far.
        const std::size_t next = 1 + load_be16(&payload[at + 32]);
        const std::size_t guess = at == 0 ? size / 4 : (size - at) * (records.size() + 1) / at;
        records.reserve(
            std::max(records.size() + next, std::min(records.size() + guess, records.size() + (std::size_t{1} << 22))));
        if (flags) flags->resize(records.capacity());
        const DecodeResult result = kernels().decode_chains(payload.data(), size, at, records.data() + records.size(),
                                                            flags ? flags->data() + records.size() : nullptr,
                                                            records.capacity() - records.size());
        records.resize(records.size() + result.positions);
        unscored += result.unscored;
        if (counts) counts->chains += result.chains, counts->single += result.single_chains;
        if (result.error) {
            throw file_.error(offset + result.offset, "chunk " + std::to_string(chunk) + ", chain at its byte " +
                                                          std::to_string(result.offset) + ": " + result.error);
        }
        at = result.offset;
    }
    return unscored;
}

BinpackWriter::BinpackWriter(std::string path, int fd) : file_(std::move(path), fd) {}

bool BinpackWriter::extends_chain(const Entry& e) const {
    return last_ && !last_->move.is_null() && !e.move.is_null() && chain_plies_ < kMaxChainPlies &&
           e.result == -last_->result && e.position.ply == last_->position.ply + 1 &&
           same_position(expected_, e.position);
}

void BinpackWriter::append(const Entry& e) {
    movetext_.resize(movetext_bits_ / 8 + 1 + kMaxPlyBytes);
    BitWriter writer(movetext_.data(), movetext_bits_);
    put_move(writer, e.position, e.move);
    put_score(writer, zigzag(static_cast<std::int16_t>(e.score + last_->score)));
    movetext_bits_ = writer.bits();
    ++chain_plies_;
}

void BinpackWriter::add(const Record& record) {
    Entry e;
    if (const char* error = unpack(record, e)) {
        throw FormatError(file_.path() + ": position " + std::to_string(positions_) + ": " + error);
    }
    if (!e.move.is_null() && !is_pseudo_legal(e.position, e.move)) {
        throw FormatError(file_.path() + ": position " + std::to_string(positions_) + ": no such move in " +
                          format_fen(e.position) + ": " + format_uci(e.move));
    }
    if (!e.move.is_null() && (pieces(e.position, e.position.side_to_move ^ 1, kKing) & bit(e.move.to()))) {
        throw FormatError(file_.path() + ": position " + std::to_string(positions_) +
                          ": a move that takes a king: " + format_uci(e.move) + " in " + format_fen(e.position));
    }
    if (!join_chains) {  // no need to know where the move leads
        close_chain();
        stem_ = record;
        write_chain();
        ++positions_;
        return;
    }
    if (extends_chain(e)) {
        append(e);
    } else {
        close_chain();
        stem_ = record;
    }
    ++positions_;
    last_ = e;
    expected_ = e.position;
    if (!e.move.is_null()) play(expected_, e.move);
}

void BinpackWriter::close_chain() {
    if (!last_) return;
    write_chain();
    last_.reset();
}

void BinpackWriter::write_chain() {
    payload_.insert(payload_.end(), stem_.bytes.begin(), stem_.bytes.end());
    std::uint8_t plies[2];
    store_be16(plies, chain_plies_);
    payload_.insert(payload_.end(), plies, plies + 2);
    payload_.insert(payload_.end(), movetext_.begin(),
                    movetext_.begin() + static_cast<std::ptrdiff_t>((movetext_bits_ + 7) / 8));
    movetext_bits_ = 0;
    chain_plies_ = 0;
    ++chains_;
    if (payload_.size() >= kFlushPayload) flush();
}

void BinpackWriter::flush() {
    if (payload_.empty()) return;
    const auto size = static_cast<std::uint32_t>(payload_.size());
    const std::uint8_t header[kHeader] = {'B',
                                          'I',
                                          'N',
                                          'P',
                                          static_cast<std::uint8_t>(size),
                                          static_cast<std::uint8_t>(size >> 8),
                                          static_cast<std::uint8_t>(size >> 16),
                                          static_cast<std::uint8_t>(size >> 24)};
    file_.write(header);
    file_.write(payload_);
    payload_.clear();
}

void BinpackWriter::finish() {
    close_chain();
    flush();
}

}  // namespace nnue::data
