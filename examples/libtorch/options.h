// name=value arguments of a program: the value of each, or its default, and what it means.
#pragma once

#include <c10/util/Exception.h>

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

struct Options {
    std::map<std::string, std::pair<std::string, std::string>> values;

    const std::string& text(const std::string& name) const { return values.at(name).first; }
    double number(const std::string& name) const {
        std::istringstream stream(text(name));
        double value = 0;
        if (!(stream >> value) || !stream.eof())
            throw std::runtime_error(name + "=" + text(name) + ": expected a number");
        return value;
    }
    int64_t whole(const std::string& name) const { return static_cast<int64_t>(number(name)); }

    // Reads the arguments and calls `program`. Returns the exit status: 1, after one line, for an error.
    template <class Program>
    int run(int argc, char** argv, const Program& program) {
        try {
            if (read(argc, argv)) program();
            return 0;
        } catch (const c10::Error& error) {
            std::fprintf(stderr, "%s\n", error.what_without_backtrace());
        } catch (const std::exception& error) {
            std::fprintf(stderr, "%s\n", error.what());
        }
        return 1;
    }

  private:
    bool read(int argc, char** argv) {
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i], name = word.substr(0, word.find('='));
            if (word == "--help" || word == "-h") return print_help();
            if (name.size() + 1 >= word.size()) throw std::runtime_error(word + ": expected name=value");
            if (!values.contains(name)) throw std::runtime_error(name + ": no such option, see --help");
            const bool is_number = std::isdigit(text(name).c_str()[0]) != 0;
            values.at(name).first = word.substr(name.size() + 1);
            if (is_number) number(name);
        }
        for (const auto& [name, of] : values)
            if (of.first.empty()) throw std::runtime_error(name + ": expected " + name + "=FILE, see --help");
        return true;
    }

    bool print_help() const {
        std::printf("usage: train data=FILE validation=FILE [name=value ...]\n");
        for (const auto& [name, of] : values)
            std::printf("  %-14s%s; %s\n", name.c_str(), of.second.c_str(),
                        of.first.empty() ? "required" : ("default " + of.first).c_str());
        return false;
    }
};
