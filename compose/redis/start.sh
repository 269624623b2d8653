#!/bin/sh
# Redis with one user for nodes and routers, who may do what docs/redis.md says, one for the health
# check, who may only ping, and one for cluster.sh. KVMESH_CLUSTER_HOST makes it a server of a Redis
# Cluster, known to all by that name: its address may be another when it starts again.
set -eu
password=$(cat /run/secrets/redis-password)
cat > /tmp/users.acl <<ACL
user default off
user health on >$password resetkeys resetchannels -@all +ping
user cluster on >$password resetkeys resetchannels -@all +cluster
user kvmesh on >$password ~{kvmesh:* resetchannels -@all +multi +exec +hset +hget +hmget +hdel +hscan +unlink +rename +pexpire +xadd +xread +xrevrange +cluster|slots +evalsha +eval +time +hgetall +expire +zadd +zcard +zrem +zremrangebyscore
ACL
if [ -n "${KVMESH_CLUSTER_HOST:-}" ]; then
    set -- "$@" --cluster-enabled yes --dir /data --cluster-announce-hostname "$KVMESH_CLUSTER_HOST" \
        --cluster-preferred-endpoint-type hostname
fi
exec redis-server --bind '*' --protected-mode no --dir /tmp --save '' --aclfile /tmp/users.acl "$@"
