#!/bin/sh
wc -l </app/poem.txt >/app/answer.txt
