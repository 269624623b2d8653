#!/bin/sh
# Redis with one user for nodes and routers, who may do what docs/redis.md says, and one for the
# health check, who may only ping.
set -eu
password=$(cat /run/secrets/redis-password)
cat > /tmp/users.acl <<ACL
user default off
user health on >$password resetkeys resetchannels -@all +ping
user kvmesh on >$password ~{kvmesh:* resetchannels -@all +multi +exec +hset +hget +hmget +hdel +hscan +unlink +rename +pexpire +xadd +xread +xrevrange +cluster|slots +evalsha +eval +time +hgetall +expire +zadd +zcard +zrem +zremrangebyscore
ACL
exec redis-server --bind '*' --protected-mode no --dir /tmp --save '' --aclfile /tmp/users.acl "$@"
