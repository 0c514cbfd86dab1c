# docker build -t longreach . && docker run --rm longreach          the quickstart
# docker run --rm -v "$PWD:/work" -w /work longreach longreach ...    any command, on files of this directory
FROM debian:12
COPY . /longreach
WORKDIR /longreach
RUN tools/setup \
    && cmake --preset release -DLONGREACH_TESTS=OFF -DLONGREACH_UNITY=ON \
    && cmake --build --preset release --target longreach \
    && cmake --install build --strip
CMD ["tools/quickstart"]
