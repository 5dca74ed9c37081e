#!/bin/sh
# What nvidia-smi would tell of the GPU that a script meets, before the script has taken any of its memory.
of_profile() { sed -n "s/^$1 //p" "$TONNAGE_FAKE_PROFILE"; }
name=$(of_profile name)
total=$(($(of_profile total) / 1048576))
free=$(($(of_profile capacity) / 1048576))
count=$(of_profile devices)
[ "$count" -gt 0 ] || count=1
architecture="$(of_profile 'attribute 75').$(of_profile 'attribute 76')"
driver=580.00
echo "nvidia-smi is asked, which tells of memory as if the script had taken none" >>"$TONNAGE_FAKE_NOTES/guesses"

query= header=1 mib=" MiB" percent=" %" list=0 apps=0 before=
for word; do
    case $before in
    --query-gpu) query=$word ;;
    --format) word=--format=$word ;;
    esac
    before=$word
    case $word in
    --query-gpu=*) query=${word#*=} ;;
    --query-compute-apps=*) apps=1 ;;
    -L | --list-gpus) list=1 ;;
    --format=*)
        case ,$word, in *,noheader,*) header=0 ;; esac
        case ,$word, in *,nounits,*) mib= percent= ;; esac
        ;;
    esac
done

value() {
    case $1 in
    name | gpu_name) echo "$name" ;;
    index) echo "$2" ;;
    count) echo "$count" ;;
    uuid | gpu_uuid) echo "GPU-00000000-0000-0000-0000-00000000000$2" ;;
    driver_version) echo "$driver" ;;
    compute_cap) echo "$architecture" ;;
    memory.total) echo "$total$mib" ;;
    memory.free) echo "$free$mib" ;;
    memory.used) echo "$((total - free))$mib" ;;
    utilization.*) echo "0$percent" ;;
    *) echo "[N/A]" ;;
    esac
}

[ "$apps" = 1 ] && exit 0
if [ -n "$query" ] && [ "$header" = 1 ]; then echo "$query" | sed 's/ *, */, /g'; fi
device=0
while [ "$device" -lt "$count" ]; do
    if [ -n "$query" ]; then
        line=
        for field in $(echo "$query" | tr ',' ' '); do line="$line, $(value "$field" "$device")"; done
        echo "${line#, }"
    elif [ "$list" = 1 ]; then
        echo "GPU $device: $name (UUID: $(value uuid "$device"))"
    else
        echo "| NVIDIA-SMI $driver | $device $name | $((total - free))MiB / ${total}MiB | 0% |"
    fi
    device=$((device + 1))
done
