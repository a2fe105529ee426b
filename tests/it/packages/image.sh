# Builds the image from the Dockerfile, and runs it. No registry is contacted: replacements for the base images are made
# from this machine's files, and their cargo copies an existing binary.
scratch=$2 repository=$3 program=$4
chmod 755 "$scratch"
export TMPDIR="$scratch"
buildah="buildah --root $scratch/storage --runroot $scratch/run --storage-driver vfs"
dockerfile=$repository/packaging/Dockerfile

# Makes an image of this name from a directory.
make_image() { # DIRECTORY NAME USER
    container=$($buildah from scratch)
    $buildah copy --quiet "$container" "$1" /
    $buildah config --user "$3" "$container"
    $buildah commit --quiet "$container" "$2"
}
base_of() {
    sed -n 's/^FROM \([^ ]*\).*/\1/p' "$dockerfile" | sed -n "$1p"
}

tools=$scratch/tools
for tool in sh install strip; do
    path=$(command -v "$tool")
    install -D "$path" "$tools/bin/$tool"
    ldd "$path" | grep -o '/[^ ]*' | while read -r library; do
        install -D "$library" "$tools$library"
    done
done
install -D --strip "$program" "$tools/ready"
cat >"$tools/bin/cargo" <<'END'
#!/bin/sh -eu
[ "$*" = 'build --release --locked --package pgpalisade' ]
[ -e Cargo.lock ] && [ ! -e .git ] && [ ! -e rust-toolchain.toml ]
install -D /ready target/release/pgpalisade
END
printf '#!/bin/sh\n' >"$tools/bin/apt-get"
chmod 755 "$tools"/bin/*
make_image "$tools" "docker.io/library/$(base_of 1)" 0

# The only files of the real one that are needed.
runtime=$scratch/runtime
dpkg --listfiles libc6 libgcc-s1 | grep -E '^/lib(64)?/([^/]*/)?[^/]*\.so' | while read -r library; do
    install -D "$library" "$runtime$library"
done
make_image "$runtime" "$(base_of 2)" 65532

start_postgres "$scratch/cluster"
$buildah bud --isolation chroot --pull-never --file "$dockerfile" --tag pgpalisade "$repository"
container=$($buildah from --pull-never pgpalisade)
listed='{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}{{range .OCIv1.Config.Cmd}}{{.}} {{end}}'
command=$($buildah inspect --format "$listed" "$container")
$buildah inspect --format '{{.OCIv1.Config.ExposedPorts}}' "$container" | grep '6432/tcp'
run="$buildah run --isolation chroot --env PGPALISADE_UPSTREAM=postgres://127.0.0.1:5432"
run="$run --env PGPALISADE_AUTHORITY=embedded:/var/lib/pgpalisade"
$run --env PGPALISADE_CONTROL='user=pgpalisade dbname=postgres' "$container" -- $command &
use
[ "$(stat -c %u "/proc/$(pidof pgpalisade)")" = 65532 ]
