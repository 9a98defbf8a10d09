# shellcheck shell=bash
# Debian's archive, and its kernels, unpacked: one that unpacks itself emulated takes 10 s a boot and
# more. Read by `build`, `kernels` and `system`, which define `cannot`.

# The kernel inside its own unpacker, where Documentation/x86/boot.rst says it is, by the fields
# setup_sects, payload_offset and payload_length: VMLINUZ FILE
unpack_kernel() {
    local image=$1 file=$2 sectors offset length
    sectors=$(field "$image" 497 1)
    offset=$(($(field "$image" 584 4) + (sectors + 1) * 512))
    length=$(field "$image" 588 4)
    # What follows the compressed data is its length, at which the tools complain.
    head -c $((offset + length)) "$image" | tail -c "$length" > "$file.packed"
    case $(head -c 4 "$file.packed" | od -An -tx1 | tr -d ' ') in
    fd377a58) xz -dc --single-stream < "$file.packed" ;;
    28b52ffd) zstd -dc < "$file.packed" ;;
    1f8b*) gzip -dc < "$file.packed" ;;
    02214c18) lz4 -dc < "$file.packed" ;;
    *) cannot "the kernel is compressed in a way that is not known here" ;;
    esac > "$file" 2>/dev/null || true
    rm "$file.packed"
    [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || cannot "the kernel could not be unpacked"
}

# One little-endian number of a file: FILE OFFSET BYTES
field() {
    od -An -j "$2" -N "$3" "-tu$3" "$1" | tr -d ' '
}

# Copies modules and those they need, unpacked, from one tree to another: FROM TO VERSION MODULE...
copy_modules() {
    local from=$1 to=$2 version=$3 module file
    shift 3
    mkdir -p "$to/usr/lib/modules/$version"
    # The place where depmod searches.
    [ -e "$to/lib" ] || ln -s usr/lib "$to/lib"
    for module in "$@"; do
        # A built-in module has no file.
        modprobe --dirname "$from" --set-version "$version" --show-depends "$module" |
            sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | sort --unique | while read -r file; do
        file=usr/lib/modules/${file#*/lib/modules/}
        (cd "$from" && cp --parents "$file" "$to")
        # Unpacking is cheaper here than emulated.
        [ "${file%.xz}" = "$file" ] || xz -d "$to/$file"
    done
    cp "$from/usr/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$to/usr/lib/modules/$version/"
    depmod --basedir "$to" "$version"
}

# The archive of Debian to fetch from: RINGWAY_DEBIAN_MIRROR, or the one that this machine's apt uses.
debian_mirror() {
    local found=${RINGWAY_DEBIAN_MIRROR:-}
    # shellcheck disable=SC2016
    [ -n "$found" ] || found=$(apt-get indextargets --format '$(CREATED_BY) $(REPO_URI)' 'Origin: Debian' |
        sed -n 's|^Packages \(.*/debian\)/$|\1|p' | head -n 1)
    [ -n "$found" ] || cannot "apt here has no archive of Debian: name one in RINGWAY_DEBIAN_MIRROR"
    echo "$found"
}
