"""Conversations with agents, as turns: in several scripts, with tools."""

from __future__ import annotations

from memctl.summarizer import Turn


def _talk(*lines: tuple[str, str]) -> list[Turn]:
    return [Turn(role, role, text) for role, text in lines]


ENGLISH = _talk(
    (
        "user",
        "Hi! I need help planning a trip to Kyoto for my family. We are two adults and two "
        "children, 6 and 9. We fly from Vienna on April 3 and return on April 12. The budget is "
        "6000 euros without flights.",
    ),
    (
        "assistant",
        "I'd be happy to help you plan the trip to Kyoto. Do you prefer hotels or apartments? Is "
        "there anything that I should avoid?",
    ),
    (
        "user",
        "We prefer an apartment near a train station. My son is allergic to peanuts, so please "
        "always check restaurants. No early mornings.",
    ),
    ("assistant", '[calls search_apartments] {"city": "Kyoto", "guests": 4}'),
    (
        "tool",
        "[result of search_apartments] Found 3 apartments. Kamo House, 4 guests, 180 EUR per "
        "night, 5 minutes from Kyoto station. Gion Loft, 4 guests, 240 EUR per night. Machiya Rin "
        "is not available on April 9 because of maintenance.",
    ),
    (
        "assistant",
        "I found three apartments in Kyoto. **Kamo House** costs 180 euros per night and is 5 "
        "minutes from Kyoto station. Machiya Rin cannot be booked because it is closed on April "
        "9. I recommend Kamo House because it leaves 4380 euros of the budget.",
    ),
    (
        "user",
        "Kamo House sounds great, book it please. Can you also find out when the cherry blossoms "
        "are best?",
    ),
    ("assistant", '[calls book] {"id": "kamo"}'),
    ("tool", "[result of book] Booking confirmed. Free cancellation until March 20."),
    (
        "assistant",
        "Kamo House is booked from April 3 to April 12 under reservation number KH-20931. You can "
        "cancel it free of charge until March 20. The cherry blossoms in Kyoto usually peak "
        "between April 1 and April 8. Next I will look for restaurants without peanuts near the "
        "station and plan the days. I still need to know whether you want a pocket wifi.",
    ),
)

GERMAN = _talk(
    (
        "user",
        "Guten Tag! Bitte hilf mir, die Rechnungen vom letzten Quartal zu prüfen. Sie liegen im "
        "Ordner rechnungen/2026-q1.",
    ),
    (
        "assistant",
        "Ich habe 42 Rechnungen im Ordner gefunden. Bei drei Rechnungen fehlt die "
        "Umsatzsteuernummer des Lieferanten. Die Rechnung 2026-017 wurde zweimal gebucht.",
    ),
    ("user", "Die doppelte Rechnung bitte stornieren. Ändere niemals etwas an bezahlten Posten!"),
    (
        "assistant",
        "Die doppelte Buchung der Rechnung 2026-017 ist storniert. Als Nächstes schreibe ich die "
        "drei Lieferanten wegen der fehlenden Umsatzsteuernummer an.",
    ),
)

CHINESE = _talk(
    (
        "user",
        "你好！请帮我分析一下上个季度的销售数据。"
        "数据在 sales_q3.csv 文件里，我希望知道哪些地区的销售额下降了。",
    ),
    ("assistant", '好的，我先读取文件。\n[calls read] {"path": "sales_q3.csv"}'),
    (
        "tool",
        "[result of read] 华东地区销售额增长百分之十二。华南地区销售额下降百分之八。"
        "西北地区的数据缺失，因为八月份系统升级。",
    ),
    (
        "assistant",
        "分析结果出来了。华南地区的销售额下降了百分之八，主要原因是广州的两家门店关闭。"
        "西北地区八月份的数据缺失，无法比较。",
    ),
    ("user", "我不要图表，只要文字报告。报告请用中文写，不要超过两页。"),
    (
        "assistant",
        "明白了，报告只用文字。我已经完成了报告的前半部分，保存在 report.md。"
        "接下来我需要补充西北地区八月份的数据，然后写结论。",
    ),
)

JAPANESE = _talk(
    ("user", "来週の東京出張の予定を作ってください。水曜日の午後は会議があるので空けてください。"),
    (
        "assistant",
        "東京出張の予定を作りました。火曜日の朝に新幹線で出発します。水曜日の午後は会議のために空けてあります。",
    ),
    ("user", "ホテルは駅の近くが好きです。予算は一泊一万五千円までです。"),
    (
        "assistant",
        "品川駅の近くのホテルを予約しました。料金は一泊一万三千円です。次に帰りの新幹線を探します。",
    ),
)

ARABIC = _talk(
    (
        "user",
        "مرحبا، أريد مساعدة في كتابة رسالة إلى مدير المدرسة. ابني غائب منذ أسبوع لأنه مريض. "
        "من فضلك اكتب الرسالة باللغة العربية الفصحى.",
    ),
    (
        "assistant",
        "كتبت المسودة الأولى من الرسالة إلى مدير المدرسة. ذكرت أن ابنك مريض منذ أسبوع. "
        "يجب أن ترسل لي اسم المدرسة وتاريخ العودة.",
    ),
)

HINDI = _talk(
    ("user", "मुझे अपनी दुकान के लिए एक वेबसाइट बनानी है। वेबसाइट हिंदी और अंग्रेजी दोनों में होनी चाहिए।"),
    (
        "assistant",
        "मैंने वेबसाइट का पहला पन्ना बना दिया है। दुकान का पता और समय पन्ने पर लिखा है। "
        "कृपया दुकान की तस्वीरें भेजिए।",
    ),
)

EMOJI = _talk(
    ("user", "🎉🎉 Our team won the hackathon 🏆! Help me write a short post about it 👩‍👩‍👧‍👦."),
    ("assistant", "Congratulations 🎊! The post is ready and mentions the whole team 👩‍💻👨‍💻. 👍"),
    ("user", "Love it ❤️! Please add a thank you for the judges 🙏. 😀😀😀"),
    ("assistant", "I added a thank you for the judges 🙏 at the end of the post. ✅"),
)
