#!/bin/sh
# Freezes the guest that it runs in: pando-freeze [WORD]. Who called it goes on twice, as after fork(2):
# '0 IMAGE' is printed in the guest, '1 NAME' in each clone of the image. Made by Pando for guests with --allow-freeze.
answer=/run/pando/answer.$$
mkfifo -m 600 "$answer" || exit 125
exec 3<>"$answer"
echo "$$ ${1:--}" >/run/pando/freeze || exit 125
IFS= read -r said <&3
exec 3<&-
rm -f "$answer"
case $said in
    [01]' '*) echo "$said" ;;
    *) echo "pando-freeze: $said" >&2; exit 125 ;;
esac
