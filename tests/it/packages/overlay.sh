# A changeable copy of this machine: its file system below an overlay.
scratch=$2 package=$3 steps=$4
mount -t tmpfs none "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
root=$scratch/root
mount -t overlay -o "lowerdir=/,upperdir=$scratch/upper,workdir=$scratch/work" none "$root"
mount -t proc none "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs none "$root/dev/shm"
mount -t tmpfs none "$root/run"
mkdir -p "$root$programs"
mount --bind "$programs" "$root$programs"
cp "$package" "$root/pgpalisade.deb"
exec chroot "$root" sh -c "$steps" sh "$programs"
