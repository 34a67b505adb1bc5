"""Words by which a sentence says that it looks ahead, explains, or states a wish.

A few for each of the languages that agents are spoken to in most.  Where none is known the rank
of a sentence decides alone.
"""

from __future__ import annotations

import re

_AHEAD = (
    r"\b(next|then|todo|to do|still|remain\w*|pending|plan\w*|will|shall|should|need\w*|let'?s"
    r"|later|tomorrow|follow[- ]?up|waiting|open question\w*"
    r"|als nächstes|nächste\w*|noch|werde\w*|müssen|muss|sollte\w*|später|morgen|offen"
    r"|ensuite|prochain\w*|reste|devr\w+|faut|demain|à faire"
    r"|siguiente|próxim\w+|falta\w*|queda\w*|debe\w*|mañana|pendiente\w*|hay que"
    r"|далее|следующ\w+|нужно|надо|осталось|затем|завтра|будет|потом)\b"
    r"|接下来|下一步|需要|待办|还要|还没|尚未|之后|明天|準備|准备|计划|計劃|將會|将会|请你|然后再"
    r"|次に|これから|必要が|予定です|まだ|明日|残って|しましょう"
    r"|다음|아직|남은|남아|예정|해야|내일|앞으로"
    r"|بعد ذلك|التالي|يجب|سوف|غدا|لاحقا|המשך|הבא|צריך|מחר|נותר"
)
_FINDING = (
    r"\b(because|caus\w+|error\w*|fail\w*|found|discover\w*|turns out|decid\w*|fixed|resolved"
    r"|instead|however|limit\w*|cannot|can'?t|does ?n[o']t work|result\w*|confirmed|wrong"
    r"|weil|fehler\w*|gefunden|entschied\w*|stattdessen|grenze|behoben|ursache"
    r"|parce que|erreur\w*|trouvé\w*|décid\w+|corrigé\w*|cause"
    r"|porque|encontr\w+|decid\w+|corregid\w+|causa"
    r"|потому|ошибк\w+|найден\w*|оказалось|решил\w*|исправ\w+|причин\w+)\b"
    r"|因为|因為|原因|错误|錯誤|发现|發現|失败|失敗|决定|決定|确认|確認|限制|无法|無法|结果|結果"
    r"|理由|エラー|見つ|判明|できません|なぜなら"
    r"|때문|오류|실패|발견|결정|확인|불가"
    r"|لأن|خطأ|فشل|وجد|قرر|בגלל|שגיאה|נכשל|נמצא|הוחלט"
)
_WISH = (
    r"\b(prefer\w*|always|never|please|must|do ?n[o']t|only|want\w*|like\w*|hate\w*|avoid"
    r"|remember|allerg\w*|budget|deadline|favou?rite|my|our"
    r"|bitte|immer|niemals|nie|lieber|möchte\w*|nur|mein\w*|unser\w*"
    r"|toujours|jamais|préfér\w+|veux|seulement|mon|mes|notre"
    r"|siempre|nunca|prefier\w+|quiero|solo|sólo|mi|mis|nuestr\w+"
    r"|всегда|никогда|пожалуйста|хочу|только|предпочита\w+|мой|мне|нам)\b"
    r"|喜欢|喜歡|不要|总是|總是|必须|必須|请|請|希望|偏好|记住|記住|只要|我们的|我的|预算|預算|过敏|過敏"
    r"|ください|いつも|好き|嫌い|絶対|だけ|欲しい|予算|アレルギー"
    r"|항상|절대|좋아|싫어|원해|부탁|주세요|예산|알레르기"
    r"|دائما|أبدا|أفضل|من فضلك|أريد|فقط|תמיד|לעולם|מעדיפ\w*|בבקשה|רוצה|רק"
)

AHEAD = re.compile(_AHEAD, re.IGNORECASE)
"""What is to be done."""
FINDING = re.compile(_FINDING, re.IGNORECASE)
"""What was found out, and why."""
WISH = re.compile(_WISH, re.IGNORECASE)
"""What somebody wants."""
