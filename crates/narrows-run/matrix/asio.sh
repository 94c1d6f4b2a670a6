# needs: c++ file:/usr/include/asio.hpp
# scenarios: echo stream refused
# Asio: an acceptor shared by two threads, many connections in one thread, a stream with timeouts.
case $role in
server)
    if [ ! -e "$KEEP/asio.done" ]; then
        mkdir -p "$KEEP/asio"
        cat >"$KEEP/asio/main.cpp" <<'CPP'
#include <asio.hpp>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <thread>

using asio::ip::tcp;

struct Answer : std::enable_shared_from_this<Answer> {
    tcp::socket socket;
    char bytes[65536];
    explicit Answer(tcp::socket s) : socket(std::move(s)) {}
    void go() {
        auto me = shared_from_this();
        socket.async_read_some(asio::buffer(bytes), [me](std::error_code error, size_t n) {
            if (error == asio::error::eof) me->socket.shutdown(tcp::socket::shutdown_send, error);
            if (error) return;
            auto written = [me](std::error_code failed, size_t) { if (!failed) me->go(); };
            asio::async_write(me->socket, asio::buffer(me->bytes, n), written);
        });
    }
};

static void accept_all(tcp::acceptor &acceptor) {
    acceptor.async_accept([&acceptor](std::error_code error, tcp::socket socket) {
        if (!error) {
            socket.set_option(tcp::no_delay(true));
            std::make_shared<Answer>(std::move(socket))->go();
        }
        accept_all(acceptor);
    });
}

struct Echo : std::enable_shared_from_this<Echo> {
    tcp::socket socket;
    const std::string &data;
    size_t length;
    std::string got;
    std::vector<char> bytes = std::vector<char>(70000);
    int &right;
    Echo(asio::io_context &io, const std::string &data, size_t length, int &right)
        : socket(io), data(data), length(length), right(right) {}
    void go(tcp::endpoint to) {
        auto me = shared_from_this();
        socket.async_connect(to, [me](std::error_code error) {
            if (error) { std::cout << "connect: " << error.message() << "\n"; return; }
            asio::async_write(me->socket, asio::buffer(me->data.data(), me->length), [me](std::error_code, size_t) {
                std::error_code ignored;
                me->socket.shutdown(tcp::socket::shutdown_send, ignored);
            });
            me->read();
        });
    }
    void read() {
        auto me = shared_from_this();
        socket.async_read_some(asio::buffer(bytes), [me](std::error_code error, size_t n) {
            me->got.append(me->bytes.data(), n);
            if (!error) return me->read();
            bool same = me->got.size() == me->length && me->data.compare(0, me->length, me->got) == 0;
            if (error == asio::error::eof && same) me->right++;
            else std::cout << error.message() << " after " << me->got.size() << "\n";
        });
    }
};

int main(int, char **args) {
    asio::io_context io;
    tcp::endpoint to(asio::ip::make_address(args[2]), atoi(args[3]));
    std::string what = args[1];
    if (what == "serve") {
        tcp::acceptor acceptor(io, to);
        accept_all(acceptor);
        std::thread other([&] { io.run(); });
        io.run();
    }
    int right = 0;
    if (what == "echo") {
        std::ifstream file(args[4]);
        std::string data((std::istreambuf_iterator<char>(file)), {});
        for (int i = 0; i < 40; i++) {
            size_t length = i < 3 ? data.size() : std::min<size_t>(data.size(), 100000 + i * 1000);
            std::make_shared<Echo>(io, data, length, right)->go(to);
        }
        io.run();
        std::cout << right << " right\n";
    } else if (what == "refused") {
        std::make_shared<Echo>(io, what, 1, right)->go(to);
        io.run();
    } else {
        tcp::iostream stream;
        stream.expires_after(std::chrono::seconds(5));
        stream.connect(args[2], args[3]);
        stream << "hello" << std::flush;
        char word[6] = {};
        stream.read(word, 5);
        std::cout << word << "\n";
        stream.expires_after(std::chrono::milliseconds(300));
        stream.read(word, 1);
        std::cout << stream.error().message() << "\n";
    }
}
CPP
        c++ -O1 -o "$KEEP/asio/lab" "$KEEP/asio/main.cpp" -lpthread 2>log || fail "c++: $(head -3 log)"
        : >"$KEEP/asio.done"
    fi
    $RUN "$KEEP/asio/lab" serve "$ADDR" "$PORT" &
    up "$PORT"
    ;;
client)
    at=$PORT
    [ $scenario = refused ] && at=$PORT2
    exits 0 $RUN "$KEEP/asio/lab" $scenario "$ADDR" "$at" "$DATA/big"
    ;;
esac
