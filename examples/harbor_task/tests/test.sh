#!/bin/sh
[ "$(cat /app/answer.txt)" -eq 3 ] && reward=1 || reward=0
echo "$reward" >/logs/verifier/reward.txt
