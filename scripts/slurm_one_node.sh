#!/usr/bin/env bash
# Start or stop a real Slurm with one node on loopback, for tests: slurm_one_node.sh start|stop
#
# It needs root on Debian or Ubuntu, and works in a container, because it needs neither systemd nor cgroups. `start`
# installs slurm-wlm and munge if they are missing, and prints the line that Slurm's commands need to find this node,
# `export SLURM_CONF=...`. Environment variables: SLURM_CI_DIR (the folder of all files), SLURM_CI_CPUS, and
# SLURM_CI_GPUS (fake GPUs, with empty files as devices).
set -euo pipefail

base=${SLURM_CI_DIR:-${TMPDIR:-/tmp}/slurm-ci}
cpus=${SLURM_CI_CPUS:-8}
gpus=${SLURM_CI_GPUS:-2}
host=$(hostname -s)
export SLURM_CONF=$base/slurm.conf

stop() {
    scancel --user "$(id -un)" 2>/dev/null || true
    sleep 1
    for daemon in slurmd slurmctld munged; do
        pid=$(cat "$base/$daemon.pid" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep .1; done
    done
}

install() {
    command -v slurmctld >/dev/null && command -v munged >/dev/null && return
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
}

configure() {
    mkdir -p "$base"/{state,spool,log}
    chmod 755 "$base"
    head -c 1024 /dev/urandom >"$base/munge.key"
    chmod 400 "$base/munge.key"
    : >"$base/gres.conf"
    gres=""
    if [ "$gpus" -gt 0 ]; then
        for i in $(seq 0 $((gpus - 1))); do : >"$base/nvidia$i"; done
        echo "NodeName=$host Name=gpu File=$base/nvidia[0-$((gpus - 1))]" >"$base/gres.conf"
        gres="Gres=gpu:$gpus"
    fi
    # cred_expire: a requeued job waits for its old credential to expire, two minutes by default.
    # KillWait: how long after SIGTERM a cancelled job is killed.
    cat >"$SLURM_CONF" <<CONF
ClusterName=ci
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket=$base/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=5
StateSaveLocation=$base/state
SlurmdSpoolDir=$base/spool
SlurmctldPidFile=$base/slurmctld.pid
SlurmdPidFile=$base/slurmd.pid
SlurmctldLogFile=$base/log/slurmctld.log
SlurmdLogFile=$base/log/slurmd.log
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 $gres CPUs=$cpus RealMemory=4096 State=UNKNOWN
PartitionName=ci Nodes=$host Default=YES MaxTime=60 State=UP
CONF
}

start() {
    install
    configure
    munged --force --key-file="$base/munge.key" --pid-file="$base/munged.pid" \
        --seed-file="$base/munged.seed" --log-file="$base/log/munged.log" --socket="$base/munge.socket"
    slurmctld
    slurmd
    for _ in $(seq 100); do
        if sinfo -h -o %T 2>/dev/null | grep -qx idle; then
            echo "export SLURM_CONF=$SLURM_CONF"
            return
        fi
        sleep .2
    done
    tail -n 20 "$base"/log/*.log
    return 1
}

case ${1:-} in
start) start ;;
stop) stop ;;
*)
    echo "usage: $0 start|stop" >&2
    exit 2
    ;;
esac
